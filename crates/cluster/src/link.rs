//! The state of the link from this node to one peer, whether it is established or not.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use peering::{Calls, Limits};
use store::Incarnation;
use tokio::sync::Notify;

/// The link from this node to one peer.
pub(crate) struct PeerLink {
    /// The incarnation of the peer.
    pub(crate) incarnation: Incarnation,
    pub(crate) address: Arc<str>,
    pub(crate) calls: Arc<Calls>,
    /// Notified when the peer's lease is over: the peer no longer serves calls.
    pub(crate) lapsed: Notify,
    /// The newest payload version that both nodes read. Set when the first link is established.
    pub(crate) payload_version: OnceLock<u32>,
    /// Whether the last attempt to connect found no common payload version.
    pub(crate) is_incompatible: AtomicBool,
    /// Whether the peer was draining when its lease was last read. Such a peer ends the link
    /// itself.
    pub(crate) is_departing: AtomicBool,
}

impl PeerLink {
    /// Creates a link that is not established.
    pub(crate) fn new(incarnation: Incarnation, address: Arc<str>, limits: Limits) -> Self {
        Self {
            incarnation,
            address,
            calls: Arc::new(Calls::new(limits)),
            lapsed: Notify::new(),
            payload_version: OnceLock::new(),
            is_incompatible: AtomicBool::new(false),
            is_departing: AtomicBool::new(false),
        }
    }
}
