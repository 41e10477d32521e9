//! What a node does with the calls of its peers, and how much it has to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use peering::Replies;

/// What this node does with a peer's call.
pub trait PeerCallHandler: Send + Sync + 'static {
    /// Takes a call, on the runtime that the cluster was joined on. Never waits; what comes of
    /// it is told by the replies. `None` means "not started": nothing was done, and the caller
    /// may send it elsewhere.
    fn handle_call(&self, call: Bytes) -> Option<Box<dyn Replies>>;
}

/// How many sessions this node keeps. The others learn it with each renewal of the lease.
/// Clones share the number.
#[derive(Clone, Debug, Default)]
pub struct Load(Arc<AtomicU64>);

impl Load {
    /// The node keeps so many sessions now.
    pub fn set(&self, sessions: u64) {
        self.0.store(sessions, Ordering::Relaxed);
    }

    pub(crate) fn sessions(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
