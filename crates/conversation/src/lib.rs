//! Decides what happens next in a session: takes events and the time, returns effects.
//!
//! A [`Session`] is one client session of the handshake revisions as a pure state
//! machine. It never waits, never reads a clock and never touches a socket: its caller
//! performs the [`Effect`]s and reports their results as [`Event`]s.

#[macro_use]
mod mutants;

mod answering;
mod asking_calls;
mod cancelled;
mod carried;
mod deadlines;
mod effect;
mod ending;
mod entry;
mod event;
mod event_id;
mod exchange;
mod fold;
mod gate;
mod handshake;
mod kept;
mod leaving;
mod limits;
mod log;
mod mirroring;
mod owner_tags;
mod posting;
mod rerun;
mod restore;
mod resume;
mod saved;
mod saved_ids;
mod server_messages;
mod server_requests;
mod session;
mod sparse;
mod state;
mod stream;
mod streams;
mod trimming;
mod withheld;

pub use effect::{Answer, Cause, Effect, Ending, Fact, Frame, Refusal, ResumeOutcome};
pub use event::{Event, Millis, SinkId};
pub use event_id::{EventId, OwnerTag};
pub use limits::Limits;
#[cfg(feature = "mutants")]
pub use mutants::{MUTANTS, is_mutant_selected, select_mutant};
pub use saved::{Ring, Saved, Unreadable};
pub use session::{Load, Rerun, Session, SessionSetup};

/// The code of an error for a reason of ours, which its message names.
const REFUSED: i32 = protocol::ErrorCode::Refused.number();
