//! Which node owns a session, and how to reach that node.
//!
//! A [`Cluster`] keeps this node's lease, keeps a list of the other nodes, and carries calls to
//! them. The content of a call is opaque bytes here. A cluster claims a session when its caller
//! requests that, and decides nothing about the messages of the session. A node on its own is a
//! cluster of one.

mod claim;
mod clock;
mod cluster;
mod dial;
mod error;
mod failovers;
mod link;
mod linked;
mod listen;
mod location_cache;
mod locator;
mod meet;
mod members;
mod membership;
mod metrics;
mod node;
mod node_lease;
mod peer;
mod peer_watch;
mod peers;
mod revocations;
mod serve;
mod settings;
#[cfg(test)]
mod tests;
mod upkeep;

pub use cluster::Cluster;
pub use error::Error;
pub use membership::Membership;
pub use ownership::location::Cause;
pub use peer::{ForwardedCall, Peer, SessionLocation};
pub use peering::{CallError, Replies, Tls, Versions, install_flush_queue as batch_wakes};
pub use revocations::{Revocations, RevocationsOfThread};
pub use serve::{Load, PeerCallHandler};
pub use settings::{Encrypt, Settings};
