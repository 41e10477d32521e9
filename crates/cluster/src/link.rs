//! What is known of the link from this node to one other, whether it is up or not.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use peering::{Calls, Limits};
use store::Incarnation;
use tokio::sync::Notify;

/// One node's link to another.
pub(crate) struct PeerLink {
    /// Whom it is meant for.
    pub(crate) incarnation: Incarnation,
    pub(crate) address: Arc<str>,
    pub(crate) calls: Arc<Calls>,
    /// The peer's lease is over: it does nothing of what it was asked.
    pub(crate) lapsed: Notify,
    /// The newest version of payloads that both nodes read. Known from the first link on.
    pub(crate) payload_version: OnceLock<u32>,
    /// At the last attempt to connect there was no version that both read.
    pub(crate) is_incompatible: AtomicBool,
    /// The peer was about to leave when its lease was last seen, and ends the link itself.
    pub(crate) is_departing: AtomicBool,
}

impl PeerLink {
    /// A link that is down.
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
