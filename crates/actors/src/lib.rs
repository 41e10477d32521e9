//! Keeps live sessions and performs their effects. The only crate with actix actors.
//!
//! [`Handle`] creates sessions, brings them what clients send, and gives each connection an
//! [`ReplyStream`] with its reply. A session is one actor that holds the
//! machine of `conversation`, the link to the tenant's server and the writer of its log.
//!
//! In a cluster a session may live on another node. Then its calls are carried there, and the
//! user of the handle sees no difference.

mod alarm;
mod arbiters;
mod care;
mod clock;
mod handle;
mod held;
mod leaving;
mod log_writer;
mod metrics;
mod performing;
mod pump;
mod record;
mod registry;
mod remote;
mod reply_stream;
mod seeking;
mod session_actor;
mod session_handle;
mod session_start;
mod settings;
mod silence;
mod sink;
mod tombstones;

pub use care::Care;
pub use conversation::{Answer, Frame, Refusal, Rerun};
pub use handle::{Caller, Handle, Opened};
pub use ownership::ReplyEvent;
pub use reply_stream::ReplyStream;
pub use settings::Settings;
