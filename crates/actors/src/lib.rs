//! Keeps live sessions and performs their effects. The only crate with actix actors.
//!
//! [`Handle`] creates sessions, brings them the requests of clients, and gives each request a
//! [`ReplyStream`]. A session is one actor that holds the machine of `conversation`, the link to
//! the tenant's server and the writer of its log.
//!
//! In a cluster a session may live on another node. Its requests are then forwarded there, and the
//! user of the handle sees no difference. A node on its own is a cluster of one.

mod arbiters;
mod caller;
mod care;
mod clock;
mod handle;
mod held;
mod lifetimes;
mod metrics;
mod node;
mod node_context;
mod registry;
mod reply;
mod reply_stream;
mod routing;
mod session;
mod settings;
mod takeover;
mod timer;
mod tombstones;

pub use caller::Caller;
pub use care::Care;
pub use conversation::{Answer, Frame, Refusal, Rerun};
pub use handle::{Handle, NodeParts};
pub use ownership::ReplyEvent;
pub use reply_stream::{Opened, ReplyStream};
pub use routing::PAYLOAD_VERSIONS;
pub use settings::Settings;
