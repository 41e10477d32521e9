//! What should happen next in a session. Events and time in, effects out.
//!
//! A [`Session`] is one client session of the handshake revisions as a pure state
//! machine. It never waits, never reads a clock and never touches a socket: whoever
//! holds it performs the [`Effect`]s and reports what comes of them as [`Event`]s.

mod effect;
mod event;
mod event_id;
mod limits;

pub use effect::{Answer, Cause, Effect, Fact, Frame, Refusal, ResumeOutcome};
pub use event::{Event, Millis, SinkId};
pub use event_id::{Emitter, EventId};
pub use limits::Limits;
