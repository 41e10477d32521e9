//! Ends a session at its owner: the session has ended, is released, or another node owns it.
//!
//! Every waiting request gets an answer, and the end or the release is written to the store. Until
//! the store acknowledges the write, the session stays in this node's registry, so that no request
//! restores a session that has ended.

use std::sync::Arc;
use std::time::Duration;

use budget::Held;
use conversation::{Cause, Ending, Event, Millis, Refusal};
use ownership::tombstones::Tombstone;

use super::HandleState;
use super::actor::SessionActor;
use super::effects::poll_once;
use super::life::{Departure, Life};
use super::link_state::LinkState;
use super::log_writer::LogWriter;
use super::record;
use crate::clock;
use crate::metrics::{self, End};
use crate::reply::Sink;
use crate::session_durations::count_session;

/// How long a session tries to write its end or its release, in milliseconds. After that a session
/// to be released is left to be claimed. For an ended session, DELETEs are answered with an unknown
/// outcome (503), and the node continues to try (`tombstones`).
const PATIENCE_MS: u64 = 10_000;

impl SessionActor {
    /// Ends the session at this owner. First answers waiting requests and closes the streams, then
    /// starts to write the end or the release to the store. That write is the last operation under
    /// the owner's token.
    pub(super) fn leave(&mut self, end: End) {
        if !self.life.stays() {
            return;
        }
        let now = clock::now();
        let moves = matches!(end, End::Over(Cause::Asleep | Cause::Moved));
        self.close_connections(end);
        let idle_left = self.idle_left(end, now);
        match self.life.replace_with_over() {
            Life::Recorded(mut recorded) => {
                if end == End::Over(Cause::Asleep) {
                    self.keep_charge(
                        now.plus(u64::try_from(idle_left.as_millis()).unwrap_or(u64::MAX)),
                    );
                }
                if moves {
                    recorded.log_writer.lifetimes.released = idle_left.into();
                    recorded.log_writer.release();
                } else {
                    recorded.log_writer.end_session();
                }
                let until = now.plus(PATIENCE_MS);
                self.life = Life::Leaving(recorded, Departure { moves, until });
                self.count_exchanges();
                self.timer.fire_by(Some(until), now);
                self.poll_log_writer_now();
            }
            // Without a record in the store the session cannot be restored.
            Life::Unrecorded(..) => {
                self.answer_deletes(true);
                self.count_exchanges();
            }
            life @ (Life::Leaving(..) | Life::Over) => self.life = life,
        }
    }

    /// What the session keeps in the store stays charged to its tenant until the record expires. A
    /// granule more is charged, since nothing else bounds the number of sessions that sleep.
    fn keep_charge(&mut self, expires: Millis) {
        let nothing = Held::nothing(self.stored.share());
        let mut stored = std::mem::replace(&mut self.stored, nothing);
        stored.set(budget::in_granules(self.session.stored_bytes()) + budget::GRANULE_BYTES);
        self.context.sleeping_bytes.keep(self.handle.session.clone(), stored, expires);
    }

    /// How much longer the store keeps the record of a released session.
    fn idle_left(&self, end: End, now: Millis) -> Duration {
        let settings = &self.context.settings;
        let idle_max = Duration::from_secs(settings.session.idle_secs);
        let idle_ms = match end {
            End::Over(Cause::Asleep) => now.0.saturating_sub(self.touched.0),
            _ => 0,
        };
        // At least as long as a tombstone, for a client that is about to reconnect.
        idle_max.saturating_sub(Duration::from_millis(idle_ms)).max(settings.tombstone_ttl())
    }

    /// Whether the store has not acknowledged the end or the release in time. Then this session
    /// writes no further.
    pub(super) fn leaves_too_long(&mut self, now: Millis) -> bool {
        let Some(departure) = self.life.departure().filter(|departure| departure.until <= now)
        else {
            return false;
        };
        tracing::warn!(
            session = ?self.handle.session,
            released = departure.moves,
            "writing the end or the release of a session timed out"
        );
        if !departure.moves {
            self.keep_tombstone(false);
            self.answer_deletes(false);
        }
        self.set_over();
        true
    }

    /// Records that the store holds the end of the session: keeps its tombstone for later
    /// failovers, and answers DELETEs.
    pub(super) fn end_is_durable(&mut self) {
        self.keep_tombstone(true);
        self.answer_deletes(true);
        self.set_over();
    }

    /// Has the session answer the DELETEs that wait for its end.
    fn answer_deletes(&mut self, durable: bool) {
        self.step_for_answers(Event::Ended { durable });
    }

    /// Handles a request that arrives while the session leaves. A DELETE waits for the pending
    /// write of the end. All other requests are refused without being started.
    pub(super) fn receive_while_leaving(
        &mut self,
        departure: Departure,
        event: Event,
        sink: Option<Sink>,
    ) {
        let Some(sink) = sink else { return };
        if departure.moves || !matches!(event, Event::Deleted { .. }) {
            sink.abandon(departure.refusal());
            return;
        }
        self.sinks.push(sink);
        self.step_for_answers(event);
    }

    /// Keeps the tombstone of the session for later failovers. `is_written`: the store holds it.
    fn keep_tombstone(&self, is_written: bool) {
        if let Some(log_writer) = self.life.log_writer() {
            self.keep_tombstone_of(log_writer, is_written);
        }
    }

    fn keep_tombstone_of(&self, log_writer: &LogWriter, is_written: bool) {
        // The store of a cluster of one does not fail over.
        if self.context.cluster.is_alone() {
            return;
        }
        let (now, (record, generation)) = (clock::now(), log_writer.tombstone());
        let lasts = Duration::from(log_writer.lifetimes.ended).as_millis();
        let lasts = u64::try_from(lasts).unwrap_or(u64::MAX);
        let generation = is_written.then_some(generation);
        let session = self.handle.session.clone();
        let tombstone = Tombstone::new(session, record, generation, now.plus(lasts).0);
        self.context.tombstones.add(tombstone, now, |session| {
            self.context.lease_snapshot(session).failover_generation
        });
    }

    /// Stops the session: another node owns it, or it has ended. No further write or reply is sent
    /// for it.
    pub(super) fn depose(&mut self) {
        if self.life.stays() {
            self.close_connections(End::Deposed);
        }
        self.set_over();
    }

    /// Ends a session that cannot continue, in any state.
    pub(super) fn abandon(&mut self, end: End) {
        if self.life.stays() {
            self.close_connections(end);
        }
        let former = self.life.replace_with_over();
        self.count_exchanges();
        let (token, registration) = match former {
            Life::Over => return,
            // The creation of the record may have succeeded without an acknowledgement.
            Life::Unrecorded(pending_record, registration) if end == End::Unrecorded => {
                (pending_record.owner.token, registration)
            }
            Life::Unrecorded(..) => return,
            Life::Recorded(recorded) | Life::Leaving(recorded, _) => {
                self.keep_tombstone_of(&recorded.log_writer, false);
                (recorded.log_writer.token(), recorded.registration)
            }
        };
        let ended = Box::pin(record::end_in_store(
            Arc::clone(&self.context.store),
            self.handle.session.clone(),
            token,
            self.context.settings.tombstone_ttl(),
            registration,
        ));
        if let Err(ended) = poll_once(ended) {
            actix_rt::spawn(ended);
        }
    }

    /// Sets the state to over and drops all parts.
    pub(super) fn set_over(&mut self) {
        drop(self.life.replace_with_over());
        self.count_exchanges();
    }

    /// Refuses waiting requests and closes streams. DELETEs that wait for the end stay.
    fn close_connections(&mut self, end: End) {
        metrics::count_ended_session(end);
        let lasted = clock::now().0.saturating_sub(self.began.0);
        count_session(self.session.revision(), end, lasted);
        let moves = matches!(end, End::Deposed | End::Over(Cause::Asleep | Cause::Moved));
        self.handle.close(if moves { HandleState::Leaving } else { HandleState::Over });
        let pending_record = self.life.pending_record();
        let is_known = pending_record.is_none() && end != End::Unrecorded;
        if is_known {
            // The opening was logged as well.
            tracing::info!(
                tenant = &**self.handle.tenant(),
                session = ?self.handle.session,
                cause = end.label(),
                "session ended at this node"
            );
        }
        if let Some(pending_record) = pending_record {
            pending_record.recorded = None;
        }
        self.spans.close();
        if moves {
            self.link = LinkState::Down;
        } else {
            self.link.end();
        }
        self.following.clear();
        self.parked_effects.clear();
        let refusal = if is_known { Refusal::UnknownSession } else { Refusal::Unavailable };
        let session = &self.session;
        for sink in self.sinks.take_if(|sink| !session.awaits_end(sink.id)) {
            // The request may have been handled; its outcome is available from the next owner.
            if moves {
                sink.finish(Ending::Moved);
            } else {
                sink.abandon(refusal.clone());
            }
        }
        let refusal = if moves { Refusal::Moved } else { refusal };
        self.deferred.take_sinks().for_each(|sink| sink.abandon(refusal.clone()));
    }
}
