//! The handler for calls of peers, and the announced load of a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use peering::Replies;

/// Handles the calls of peers.
pub trait PeerCallHandler: Send + Sync + 'static {
    /// Starts to handle a call, on the runtime of the cluster. Never waits; the replies yield the
    /// results. `None` means "not started": this node did nothing, and the caller may send the call
    /// to another node.
    fn handle_call(&self, call: Bytes) -> Option<Box<dyn Replies>>;
}

/// The number of sessions on this node. Peers read it from the lease at each renewal. Clones share
/// the number.
#[derive(Clone, Debug, Default)]
pub struct Load(Arc<AtomicU64>);

impl Load {
    /// Sets the number of sessions on this node.
    pub fn set(&self, sessions: u64) {
        self.0.store(sessions, Ordering::Relaxed);
    }

    pub(crate) fn sessions(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
