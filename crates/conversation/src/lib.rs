//! Decides the next steps of a session: takes events and the time, returns effects.
//!
//! A [`Session`] is one client session of the handshake revisions as a pure state
//! machine. It never waits, never reads a clock and never touches a socket: its caller
//! performs the [`Effect`]s and reports their results as [`Event`]s.

#[macro_use]
mod mutants;

mod admission;
mod answering;
mod checkpoint;
mod delivery;
mod earliest;
mod effect;
mod ended_requests;
mod entry;
mod event;
mod event_id;
mod exchange;
mod handshake;
mod idle;
mod journal;
mod kept_results;
mod lifecycle;
mod limits;
mod log;
mod log_replay;
mod mirroring;
mod owner_tags;
mod pace;
mod parts;
mod persisted;
mod posts;
mod restore;
mod resumable;
mod resuming;
mod saved;
mod saved_ids;
mod server_link;
mod server_requests;
mod session;
mod setup;
mod sparse;
mod state;
mod step_context;
mod stream;
mod stream_table;
mod streams;
mod subscriptions;
mod tools;
mod waiting;
mod write_barrier;

pub use effect::{Answer, Cause, Effect, Ending, Fact, Frame, Refusal, ResumeOutcome};
pub use event::{BudgetVerdict, Definition, Event, Millis, SinkId};
pub use event_id::{EventId, OwnerTag};
pub use journal::StateChange;
pub use limits::Limits;
#[cfg(feature = "mutants")]
pub use mutants::{MUTANTS, is_mutant_selected, select_mutant};
pub use saved::{ReplayBuffer, Saved, SavedLink, Unreadable};
pub use session::{Load, Session};
pub use setup::{Rerun, SessionSetup};

/// The error code for a refusal of the node, whose message gives the reason.
const REFUSED: i32 = protocol::ErrorCode::Refused.number();
