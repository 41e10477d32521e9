//! The audit log: who did what, with which outcome. A record of a call is written before the call is
//! dispatched.
//!
//! Each thread that serves clients has a [`Recorder`], which collects the records of a tick, and writes
//! them with one system call if the destination takes them at once. Otherwise a thread of the node writes
//! them, so a slow disk stops no thread that serves clients. [`Recorder::outcome`] lets a call go on
//! when `write(2)` has returned. This crate knows nothing of MCP, and no record has a token, a
//! key or a whole session id.

mod bounds;
mod clock;
mod entry;
mod file;
mod known_origins;
mod line;
mod metrics;
mod otlp_sink;
mod output;
mod queue;
mod recorder;
mod settings;
mod shared;
mod sink;
mod waiters;
mod writer;
mod written;

pub use entry::{
    CallId, Entry, FIELD_BYTES_MAX, FieldValue, Kind, Origin, OriginSource, RequestName,
    SessionDigest, SessionOrigin,
};
pub use metrics::register_metrics;
pub use queue::Full;
pub use recorder::{Audit, Recorder, Ticket};
pub use settings::{Error, Settings, To, WhenFull};
pub use waiters::Held;
