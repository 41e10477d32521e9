//! A session that another owner kept, from its record and its log.

use protocol::{InitializeParams, RequestId};

use crate::cancelled::Cancelled;
use crate::carried::OpenServerRequest;
use crate::fold::{Folded, fold};
use crate::posting::Unanswered;
use crate::saved_ids::SavedIds;
use crate::session::{Client, Phase, Session, StepContext};
use crate::state::State;
use crate::stream::Stream;
use crate::{Effect, Millis, Ring, Saved, SessionSetup, Unreadable};

impl Session {
    /// Goes on with a session that another owner kept. What was in flight there is run
    /// again where that does no harm, and otherwise ends with an error.
    ///
    /// `setup.owner_tag` must be new, and is not among the former ones. A duplex session
    /// ends with its connection, so it is never restored.
    pub fn restore(
        setup: SessionSetup,
        saved: Saved,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) -> Result<Self, Unreadable> {
        let mut context = StepContext { now, effects };
        let Saved { revision, initialize, state, version, former, log } = saved;
        let asked = InitializeParams::read(&initialize).map_err(|_| Unreadable::RECORD)?;
        let mut state = State::read(&state)?;
        if mutant!("restore_no_cancellation") {
            state.cancelled.clear();
        }
        let owner_tag = setup.owner_tag;
        let mut session = Self::new(setup, now);
        let Folded { log, streams, finished, server_requests } =
            fold(&log, &former, owner_tag, now)?;
        (session.log, session.streams, session.finished) = (log, streams, finished);
        session.phase = if state.initialized { Phase::Live } else { Phase::Answered };
        session.versions.newest = version;
        session.versions.held = version;
        session.level = state.level().filter(|_| !mutant!("restore_no_level"));
        session.client = Some(Box::new(Client {
            revision,
            capabilities: asked.capabilities,
            params: initialize,
            server_lists: state.server_lists(),
            server_has_tools: state.tools,
        }));
        session.subscribed =
            (!state.subscriptions.is_empty()).then(|| Box::new(state.subscriptions));
        let ended = |id: &RequestId| Unanswered { id: id.clone(), by_client: true };
        session.unanswered = state.cancelled.iter().map(ended).collect();
        session.cancelled = Cancelled::restored(SavedIds::restored(state.cancelled.into()));
        session.askers = SavedIds::restored(state.askers.into());
        session.settle(&mut context, server_requests);
        session.finish_step(&mut context);
        Ok(session)
    }

    /// Ends what a lost owner had begun, or begins it anew. Standalone streams stay open:
    /// their clients come back to them.
    fn settle(&mut self, context: &mut StepContext<'_>, server_requests: Vec<OpenServerRequest>) {
        // A question is withdrawn before the final response to what asked it.
        let server_requests =
            if mutant!("questions_are_not_withdrawn") { Vec::new() } else { server_requests };
        server_requests
            .into_iter()
            .for_each(|server_request| self.withdraw_lost(context, server_request));
        let is_open = |stream: &Stream| !stream.closed && !stream.is_standalone();
        let open = self.streams.iter().filter(|(_, stream)| is_open(stream));
        let open: Vec<u64> = open.map(|(number, _)| number).collect();
        let open = if mutant!("settle_no_stream") { Vec::new() } else { open };
        open.into_iter().for_each(|number| self.settle_stream(context, number));
        self.close_deserted_for_long(context);
    }

    /// Everything of the log that can be replayed, for writing it anew.
    pub fn ring(&self) -> Ring {
        let first = self.log.first();
        Ring { first, entries: self.log.encoded(first) }
    }
}
