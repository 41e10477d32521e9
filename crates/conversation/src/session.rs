//! One client session of the handshake revisions, as a pure state machine.
//!
//! [`Session::step`] takes an [`Event`] and the current time and appends the
//! [`Effect`]s the caller must perform. It never waits and never reads a clock.
//!
//! A session consists of its [`Setup`], which never changes, and its [`Parts`]. Each event is
//! handled by a method of the parts.

use std::sync::Arc;

use protocol::Revision;

use crate::parts::Parts;
use crate::restore::Restored;
use crate::setup::Setup;
use crate::step_context::StepContext;
use crate::{
    Cause, Effect, Event, Millis, ReplayBuffer, Saved, SavedLink, SessionSetup, SinkId, Unreadable,
};

/// One client session.
pub struct Session {
    setup: Setup,
    parts: Parts,
}

/// The sizes of a session's collections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests of the client without a final response.
    pub exchanges: usize,
    /// Requests to the client without an answer.
    pub server_requests: usize,
    /// Connections that listen to a stream.
    pub attachments: usize,
    /// Streams that can be replayed.
    pub streams: usize,
    /// Messages that wait for a stream.
    pub waiting: usize,
    /// Entries of the log that can be replayed.
    pub events: usize,
}

impl Session {
    /// A session without any messages yet.
    pub fn new(setup: SessionSetup, now: Millis) -> Self {
        let parts = Parts::new(setup.owner_tag, setup.seed, now);
        Self { setup: setup.into(), parts }
    }

    /// Restores a session of another owner. A request that was in flight there is run again if
    /// that does no harm, and otherwise ends with an error.
    ///
    /// `setup.owner_tag` must be new, and is not among the former ones. A duplex session
    /// ends with its connection, so it is never restored.
    pub fn restore(
        setup: SessionSetup,
        saved: Saved,
        now: Millis,
        effects: &mut Vec<Effect>,
    ) -> Result<Self, Unreadable> {
        let (restored, server_requests) = Restored::read(saved, &setup, now)?;
        let mut session = Self { setup: setup.into(), parts: Parts::from_restored(restored, now) };
        let Self { setup, parts } = &mut session;
        let context = &mut StepContext { now, setup, effects };
        parts.settle_restored(context, server_requests);
        parts.finish_step(context);
        Ok(session)
    }

    /// Handles an event, and appends its effects in order.
    pub fn step(&mut self, now: Millis, event: Event, effects: &mut Vec<Effect>) {
        let Self { setup, parts } = self;
        let context = &mut StepContext { now, setup, effects };
        if parts.handshake.is_over() {
            parts.answer_after_the_end(context, &event);
            return;
        }
        match event {
            Event::Posted { sink, body, mirrored, again, forwarded } => {
                parts.on_posted(context, sink, body, mirrored.as_deref(), again);
                if forwarded {
                    parts.posts.mark_forwarded(sink);
                }
            }
            Event::Listened { sink, after } => parts.on_listened(context, sink, after.as_deref()),
            Event::Deleted { sink } => parts.on_deleted(context, sink),
            Event::SinkClosed { sink } => parts.on_sink_closed(context, sink),
            Event::BackendChosen { definition, is_replaced } => {
                parts.on_backend_chosen(definition, is_replaced)
            }
            Event::LinkUp => parts.on_link_up(context),
            Event::ServerMessage { message, about, position: None } => {
                parts.on_server_message(context, message, about.as_ref())
            }
            Event::ServerMessage { message, about, position: Some(position) } => {
                parts.on_positioned_message(context, message, about.as_ref(), position)
            }
            Event::ServerAdvanced { about, position } => {
                parts.on_server_advanced(context, about.as_ref(), position)
            }
            Event::ServerReturned { request } => parts.on_server_returned(request),
            Event::ServerStateLost => parts.end_session(context, Cause::StateLost),
            Event::LinkSaved { state } => parts.on_link_saved(context, state),
            Event::Unsent { message } => parts.on_unsent(context, message),
            Event::ServerRoomWanted => parts.on_server_room_wanted(context),
            Event::ServerRetired => parts.on_server_retired(context),
            Event::LinkDown { reason } => parts.on_link_down(context, &reason),
            Event::Appended { .. } if mutant!("append_wakes_nobody") => {}
            Event::Appended { through } => parts.on_appended(context, through),
            Event::Saved { version } => parts.on_saved(context, version),
            Event::Reclaimed { owner_tag } => parts.streams.succeed_owner(owner_tag),
            Event::HandOver { at_once } => parts.on_hand_over(context, at_once),
            Event::Budget(verdict) => parts.on_budget_verdict(context, verdict),
            Event::HandOverCancelled => parts.lifecycle.cancel_hand_over(),
            Event::DeadlinePassed => parts.on_deadline(context),
            Event::Revoked => parts.on_revoked(context),
            Event::Stopping => parts.end_session(context, Cause::Stopping),
            // It has not ended, so no DELETE waits.
            Event::Ended { .. } => {}
        }
        parts.finish_step(context);
    }

    /// When to step with [`Event::DeadlinePassed`]. A step that is early, late or repeated does
    /// no harm.
    pub fn deadline(&self) -> Option<Millis> {
        if self.is_over() {
            return None;
        }
        self.parts.deadline(&self.setup)
    }

    /// The present sizes, each within its limit.
    pub fn load(&self) -> Load {
        let Parts { posts, server_requests, streams, waiting, .. } = &self.parts;
        Load {
            exchanges: posts.exchanges().len(),
            server_requests: server_requests.len(),
            attachments: streams.listener_count(),
            streams: streams.len(),
            waiting: waiting.len(),
            events: streams.log().len(),
        }
    }

    /// The bytes of messages and parameters that the session keeps in memory. Parts that do not
    /// depend on what a client or server sends are not counted.
    pub fn kept_bytes(&self) -> usize {
        self.parts.kept_bytes()
    }

    /// The bytes that the session's record and log keep in the store, as far as they depend on what a
    /// client or server sends.
    pub fn stored_bytes(&self) -> usize {
        self.parts.stored_bytes()
    }

    /// The number of the oldest event that a client can request again.
    pub fn first_kept_event(&self) -> u64 {
        self.parts.streams.log().first()
    }

    /// Has the client completed the handshake?
    pub fn is_live(&self) -> bool {
        self.parts.handshake.is_live()
    }

    /// Is it over?
    pub fn is_over(&self) -> bool {
        self.parts.handshake.is_over()
    }

    /// Is nothing in flight: has every request its final response, and does the store hold every
    /// entry?
    pub fn is_quiet(&self) -> bool {
        self.parts.is_quiet(&self.setup)
    }

    /// Is a request of the client without its final response, or a POST without its answer?
    pub fn has_work(&self) -> bool {
        !self.parts.has_no_work()
    }

    /// The number of the client's pending requests.
    pub fn exchanges(&self) -> usize {
        self.parts.posts.exchanges().len()
    }

    /// Whether responses take the session's one connection, and not that of their request.
    pub fn is_duplex(&self) -> bool {
        self.setup.duplex.is_some()
    }

    /// The negotiated revision; before the negotiation, the assumed one.
    pub fn revision(&self) -> Revision {
        self.parts.handshake.revision()
    }

    /// The params of its `initialize`, for the record: another owner needs them to restore the
    /// session. Empty before `initialize`, and for a duplex session, which ends with its
    /// connection and is never taken over.
    pub fn initialize(&self) -> Arc<[u8]> {
        let client = self.parts.handshake.client().filter(|_| self.setup.duplex.is_none());
        client.map(|client| client.params.clone()).unwrap_or_default()
    }

    /// The newest state and its version. [`Effect::Save`] has returned it already, unless it
    /// never changed.
    pub fn saved(&self) -> (u64, Arc<[u8]>) {
        self.parts.persisted.saved(&self.parts.handshake)
    }

    /// What the link that [`Effect::OpenLink`] requests carries on, if the link of a former owner saved
    /// something.
    pub fn saved_link(&self) -> Option<SavedLink> {
        self.parts.saved_link()
    }

    /// Every entry that can be replayed, for a re-assertion.
    pub fn replay_buffer(&self) -> ReplayBuffer {
        let log = self.parts.streams.log();
        let first = log.first();
        ReplayBuffer { first, entries: log.encoded(first) }
    }

    /// Does this connection wait for the end of the session to be stored?
    pub fn awaits_end(&self, sink: SinkId) -> bool {
        self.parts.lifecycle.awaits_end(sink)
    }

    /// The streams and server requests that its log also contains.
    #[doc(hidden)]
    pub fn outline(&self) -> String {
        self.parts.streams.outline(self.parts.server_requests.logged_requests())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A boxed session fits one size class of the allocator. A node has very many.
    #[test]
    fn a_session_takes_no_more_than_448_bytes() {
        let bytes = size_of::<Session>();
        assert!(bytes <= 448, "a session takes {bytes} bytes");
    }
}
