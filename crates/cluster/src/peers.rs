//! Which incarnations this node has a live link to, whoever made it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Incarnation;
use crate::node::Node;

/// Most peers that are told in a lease; a cluster has fewer nodes.
const TOLD_MAX: usize = 1_024;

/// How many live links there are to whom. As many as there are links.
#[derive(Default)]
pub(crate) struct Peers(Mutex<HashMap<Incarnation, usize>>);

impl Peers {
    /// Whom there is a live link to.
    pub(crate) fn linked(&self) -> Vec<Incarnation> {
        self.counts().keys().copied().take(TOLD_MAX).collect()
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<Incarnation, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A live link. Dropped when it ends, whereupon the lease is renewed at once: a node that
/// loses a link may be the one that is taken for dead.
pub(crate) struct Linked {
    node: Arc<Node>,
    peer: Incarnation,
}

impl Linked {
    pub(crate) fn new(node: &Arc<Node>, peer: Incarnation) -> Self {
        *node.peers.counts().entry(peer).or_default() += 1;
        // The lease tells of it soon: whoever looks for this node later knows by that
        // whether the lease was renewed since the link broke.
        node.renew_now.notify_one();
        Self { node: node.clone(), peer }
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        let mut counts = self.node.peers.counts();
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
        drop(counts);
        self.node.right.doubt();
        self.node.renew_now.notify_one();
    }
}
