//! Bounds what the messages of one tenant, most of all long ones, cost the others on the threads that they share.
//!
//! A worker thread serves clients of all tenants, and what it computes for one of them delays the
//! others. A short message costs microseconds. A long one costs milliseconds: it is read from a
//! socket in pieces, scanned as JSON, and scanned again for what its session has to know.
//!
//! - [`TickPermit`]: a piece of a long message is handled with a permit. Each thread gives one in each
//!   tick of its event loop, so a call of another tenant waits for at most one piece in each tick.
//!   Tenants get permits one after another. A thread without other work spends all of its time on them, but for
//!   short pauses while something is computed, and longer ones while other threads use its core
//!   ([`pace_permits`]). A stream needs one for every few short messages, and a body for every few short pieces
//!   ([`MessagePermits`]).
//! - [`note_request`]: while other threads use the core for most of the time, short requests of a tenant that has
//!   many take turns with those of others as well, by permits ([`request_turn`]).
//! - [`compute`]: what cannot be done in pieces is done by threads with a lower priority than the
//!   workers'. The kernel takes the core from them when a worker has something to do. Tenants get these
//!   threads one after another as well.
//!
//! The crate does not know what a message is, nor what is computed.

mod blocks;
mod computing;
mod core_wait;
mod elsewhere;
mod fair_queue;
mod message_permits;
mod pacing;
mod permit;
mod ready_time;
mod requests;

pub use blocks::Blocks;
pub use computing::{Computing, compute, compute_for_bytes};
pub use elsewhere::PollElsewhere;
pub use fair_queue::FairQueue;
pub use message_permits::MessagePermits;
pub use permit::{TickPermit, pace_permits};
pub use requests::{note_request, request_turn};

/// A message is long if it has more bytes than this. To scan one of this length takes at most about
/// 0.2 ms in a release build.
pub const LONG_BYTES: usize = 64 << 10;

/// Whether a message of so many bytes is long.
pub fn is_long(bytes: usize) -> bool {
    bytes > LONG_BYTES
}

/// A piece that was read is short if it has at most so many bytes: nearly all messages are shorter than this. Short
/// pieces of a body share permits ([`MessagePermits::next_piece`]).
pub const SHORT_BYTES: usize = 8 << 10;
