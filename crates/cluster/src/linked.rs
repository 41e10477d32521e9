//! A link that is up, for as long as it is.

use std::sync::Arc;

use peering::OrderlyEnd;

use crate::node::MemberNode;
use store::Incarnation;

/// A live link. Dropped when it ends, whereupon the lease is renewed at once: a node that
/// loses a link may be the one that is taken for dead.
pub(crate) struct Linked {
    node: Arc<MemberNode>,
    peer: Incarnation,
    end: OrderlyEnd,
}

impl Linked {
    /// `end` is that of the link's connection.
    pub(crate) fn new(node: &Arc<MemberNode>, peer: Incarnation, end: OrderlyEnd) -> Self {
        node.peers.begin_link(peer);
        // The renewed lease lists this link. If the link breaks, the peer sees from that list
        // whether this node has renewed its lease since, and so whether it is alive.
        node.renew_now.notify_one();
        if !node.members.knows(peer) {
            // It came a moment ago. A link back notices its death as well.
            node.look_now.notify_one();
        }
        Self { node: node.clone(), peer, end }
    }
}

impl Drop for Linked {
    fn drop(&mut self) {
        self.node.peers.end_link(self.peer, self.end.was_seen());
        self.node.lease.doubt();
        self.node.renew_now.notify_one();
    }
}
