//! How a session leaves its owner: it has ended, it is released, or another node owns it.
//!
//! Every waiting request gets an answer, and the end or the release is written to the store.
//! Until the store acknowledges the write, the session stays in this node's registry, so that no
//! request restores a session that has ended.

use std::sync::Arc;
use std::time::Duration;

use conversation::{Cause, Ending, Event, Millis, Refusal};
use ownership::tombstones::Tombstone;
use thin_vec::ThinVec;

use crate::clock;
use crate::log_writer::LogWriter;
use crate::metrics::{self, End};
use crate::performing::at_once;
use crate::record;
use crate::session_actor::SessionActor;
use crate::session_handle::HandleState;
use crate::sink::Sink;

/// How long a session that is over tries to say so, in milliseconds. Then one that was given
/// up is left to be claimed. For one that ended, DELETEs are answered that it is not known
/// (503), and the node goes on trying (`tombstones`).
const PATIENCE_MS: u64 = 10_000;

/// A session on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    moves: bool,
    until: Millis,
}

impl Leaving {
    /// The refusal for each request that arrives now. Such a request is not carried out.
    pub(crate) fn refusal(&self) -> Refusal {
        if self.moves { Refusal::Moved } else { Refusal::UnknownSession }
    }
}

impl SessionActor {
    /// Ends the session at this owner: first answers waiting requests and closes the streams,
    /// then begins to write the end or the release to the store. That write is the last
    /// operation under the owner's token.
    pub(crate) fn leave(&mut self, end: End) {
        if self.over || self.leaving.is_some() {
            return;
        }
        let now = clock::now();
        let moves = matches!(end, End::Over(Cause::Asleep | Cause::Moved));
        self.say_goodbye(end);
        self.leaving = Some(Leaving { moves, until: now.plus(PATIENCE_MS) });
        self.count_exchanges();
        let left = self.idle_left(end, now);
        match &mut self.log_writer {
            Some(log_writer) if moves => {
                log_writer.lifetimes.released = left.into();
                log_writer.release();
            }
            Some(log_writer) => log_writer.end(),
            // The store has no record of it, so nothing can bring it back.
            None => {
                self.tell_end(true);
                return self.part();
            }
        }
        self.alarm.ring_by(Some(now.plus(PATIENCE_MS)), now);
        self.keep_at_once();
    }

    /// How long a session that is given up may lie until it is over.
    fn idle_left(&self, end: End, now: Millis) -> Duration {
        let settings = &self.node.settings;
        let idle = Duration::from_secs(settings.session.idle_secs);
        let lain = match end {
            End::Over(Cause::Asleep) => now.0.saturating_sub(self.touched.0),
            _ => 0,
        };
        // A client that is on its way back finds it in any case.
        idle.saturating_sub(Duration::from_millis(lain)).max(settings.tombstone_ttl())
    }

    /// Has the store been told in vain for too long? Then it is not told any more.
    pub(crate) fn leaves_too_long(&mut self, now: Millis) -> bool {
        let late = self.leaving.is_some_and(|leaving| leaving.until <= now);
        if late {
            tracing::warn!(session = ?self.handle.session, "that a session is gone was not written in time");
            if self.leaving.is_some_and(|leaving| !leaving.moves) {
                self.keep_tombstone(false);
                self.tell_end(false);
            }
            self.part();
        }
        late
    }

    /// The store holds the end of the session: the end is kept for later failovers, and
    /// DELETEs are answered.
    pub(crate) fn end_is_durable(&mut self) {
        self.keep_tombstone(true);
        self.tell_end(true);
        self.part();
    }

    /// Has the session answer the DELETEs that wait for its end.
    fn tell_end(&mut self, durable: bool) {
        self.step(clock::now(), Event::Ended { durable });
    }

    /// A DELETE that comes while the end is being written waits for the same outcome. All
    /// other requests are refused: nothing is done for them.
    pub(crate) fn receive_late(&mut self, leaving: Leaving, event: Event, sink: Option<Sink>) {
        let Some(mut sink) = sink else { return };
        if leaving.moves || !matches!(event, Event::Deleted { .. }) {
            sink.abandon(leaving.refusal());
            return;
        }
        sink.take();
        self.sinks.push(sink);
        self.step(clock::now(), event);
    }

    /// Sees to it that the end is not forgotten. `is_written`: the store has it.
    pub(crate) fn keep_tombstone(&self, is_written: bool) {
        // A store that is one node's own forgets nothing.
        let (Some(log_writer), Some(_)) = (&self.log_writer, self.node.cluster()) else { return };
        let (now, (record, generation)) = (clock::now(), log_writer.tombstone());
        let lasts = Duration::from(log_writer.lifetimes.ended).as_millis();
        let lasts = u64::try_from(lasts).unwrap_or(u64::MAX);
        let generation = is_written.then_some(generation);
        let session = self.handle.session.clone();
        let tombstone = Tombstone::new(session, record, generation, now.plus(lasts).0);
        self.node
            .tombstones
            .keep(tombstone, now, |session| self.node.lease_snapshot(session).failover_generation);
    }

    /// The session is another owner's, or over: nothing may be said for it any more.
    pub(crate) fn depose(&mut self) {
        if self.leaving.is_none() {
            self.say_goodbye(End::Deposed);
        }
        self.part();
    }

    /// The session cannot go on, whatever state it is in: it is ended.
    pub(crate) fn abandon(&mut self, end: End) {
        if self.over {
            return;
        }
        if self.leaving.is_none() {
            self.say_goodbye(end);
        }
        let pending = self.pending_record.as_ref().map(|pending_record| pending_record.owner.token);
        let token = self.log_writer.as_ref().map(LogWriter::token).or(pending);
        self.keep_tombstone(false);
        let registration = self.registration.take();
        // A record that could not be made may be there all the same.
        let is_recorded = self.pending_record.is_none() || end == End::Unrecorded;
        self.part();
        let Some(token) = token.filter(|_| is_recorded) else { return };
        let ended = Box::pin(record::end(
            Arc::clone(&self.node.store),
            self.handle.session.clone(),
            token,
            self.node.settings.tombstone_ttl(),
            registration,
        ));
        if let Err(ended) = at_once(ended) {
            actix_rt::spawn(ended);
        }
    }

    /// Nothing more is done, and nothing is left behind.
    pub(crate) fn part(&mut self) {
        self.over = true;
        self.count_exchanges();
        self.log_writer = None;
        self.registration = None;
    }

    /// Refuses waiting requests and closes streams. DELETEs that wait for the end stay.
    fn say_goodbye(&mut self, end: End) {
        metrics::ended(end);
        tracing::debug!(session = ?self.handle.session, ?end, "a session ended");
        let moves = matches!(end, End::Deposed | End::Over(Cause::Asleep | Cause::Moved));
        self.handle.close(if moves { HandleState::Leaving } else { HandleState::Over });
        if let Some(pending_record) = &mut self.pending_record {
            pending_record.recorded = None;
        }
        self.link = None;
        self.following.clear();
        self.held.clear();
        let is_known = self.pending_record.is_none() && end != End::Unrecorded;
        let refusal = if is_known { Refusal::UnknownSession } else { Refusal::Unavailable };
        let session = &self.session;
        let (waiting, left) =
            std::mem::take(&mut self.sinks).into_iter().partition(|s| session.awaits_end(s.id));
        self.sinks = waiting;
        let left: ThinVec<Sink> = left;
        for sink in left {
            // What it came for may have been done, and is to be asked for elsewhere.
            if moves { sink.finish(Ending::Moved) } else { sink.abandon(refusal.clone()) }
        }
        let refusal = if moves { Refusal::Moved } else { refusal };
        for deferred in std::mem::take(&mut self.deferred_messages) {
            deferred.sink.into_iter().for_each(|sink| sink.abandon(refusal.clone()));
        }
    }
}
