//! What is sent to the actor of a session.

use conversation::Event;

use crate::reply::Sink;

/// A message to a session's actor.
pub(crate) enum SessionMessage {
    /// An event for the session.
    Event {
        event: Event,
        /// The connection that waits for the answer: the one that the event names.
        sink: Option<Sink>,
    },
    /// Look at the flags of the handle, and whether the node still owns the session.
    Wake,
    /// End as soon as no request is in flight.
    Drain,
}

impl SessionMessage {
    /// An event whose answer no connection waits for.
    pub(crate) fn event(event: Event) -> Self {
        Self::Event { event, sink: None }
    }
}

impl actix::Message for SessionMessage {
    type Result = ();
}
