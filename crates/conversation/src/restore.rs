//! Restores a session of another owner from its record and its log.

use protocol::InitializeParams;

use crate::checkpoint::OpenServerRequest;
use crate::ended_requests::EndedRequests;
use crate::handshake::{Client, Handshake};
use crate::log_replay::replay_log;
use crate::persisted::Persisted;
use crate::state::State;
use crate::streams::Streams;
use crate::{Millis, Saved, SessionSetup, Unreadable};

/// The parts of a session that outlive its owner.
pub(crate) struct Restored {
    pub(crate) handshake: Handshake,
    pub(crate) streams: Streams,
    pub(crate) persisted: Persisted,
    pub(crate) ended: EndedRequests,
}

impl Restored {
    /// Reads the saved session. Also returns the server requests that its owner left open.
    pub(crate) fn read(
        saved: Saved,
        setup: &SessionSetup,
        now: Millis,
    ) -> Result<(Self, Vec<OpenServerRequest>), Unreadable> {
        let Saved { revision, initialize, state, version, former, log } = saved;
        let params = InitializeParams::read(&initialize).map_err(|_| Unreadable::RECORD)?;
        let mut state = State::read(&state)?;
        if mutant!("restore_no_cancellation") {
            state.cancelled.clear();
        }
        let replayed = replay_log(&log, &former, setup.owner_tag, now)?;
        let (streams, server_requests) = Streams::restored(replayed, setup.seed);
        let client = Client::restored(revision, params.capabilities, initialize, &state);
        let handshake = Handshake::restored(client, state.initialized);
        let ended = EndedRequests::restored(&state.cancelled);
        let persisted = Persisted::restored(state, version, &setup.limits);
        Ok((Self { handshake, streams, persisted, ended }, server_requests))
    }
}
