//! The messages to a session's actor.

use conversation::Event;
use tokio::sync::oneshot;

use super::relief::Relief;
use crate::reply::Sink;
use crate::session_summary::Activity;

/// A message to a session's actor.
pub(crate) enum SessionMessage {
    /// An event for the session.
    Event {
        event: Event,
        /// The connection that waits for the answer, and that the event names.
        sink: Option<Sink>,
    },
    /// Check the flags of the handle, and whether the node still owns the session.
    Wake,
    /// End as soon as no request is in flight.
    Drain,
    /// End, unless the client has completed the handshake.
    Evict,
    /// Release bytes.
    Relieve(Relief),
    /// Tell an operator what the session does.
    Tell(oneshot::Sender<Activity>),
    /// Neither end nor be released as soon as no request is in flight.
    CancelStop,
}

impl SessionMessage {
    /// Creates a message whose event has no waiting connection.
    pub(crate) fn event(event: Event) -> Self {
        Self::Event { event, sink: None }
    }
}

impl actix::Message for SessionMessage {
    type Result = ();
}
