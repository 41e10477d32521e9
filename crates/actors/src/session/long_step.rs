//! Steps of a session with a long message of its client or its server, which take milliseconds. A thread with a lower
//! priority runs them, so that they delay the sessions of other tenants little. The actor waits, and
//! handles nothing else meanwhile.

use budget::Held;
use conversation::{Effect, Event, Session};
use fairness::{Computing, is_long};

/// A step that another thread runs.
pub(super) struct LongStep {
    pub(super) stepped: Computing<Stepped>,
    /// The bytes of the message, which no queue has any more and the session has not yet.
    pub(super) held: Option<Held>,
}

/// The machine after the step, and its effects; `None` after a panic.
pub(super) type Stepped = (Box<Session>, Option<Vec<Effect>>);

/// The bytes of a long message.
pub(super) fn long_bytes(event: &Event) -> Option<usize> {
    let bytes = match event {
        Event::ServerMessage { message, .. } => message.raw().len(),
        Event::Posted { body, .. } => body.bytes(),
        _ => return None,
    };
    Some(bytes).filter(|bytes| is_long(*bytes))
}
