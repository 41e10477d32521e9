//! A guard that registers an established link until it ends.

use std::sync::Arc;

use peering::OrderlyEnd;

use crate::node::MemberNode;
use store::Incarnation;

/// An established link. Dropping it renews the lease at once: a node that loses a link may be the
/// one that its peer marks dead.
pub(crate) struct Linked {
    node: Arc<MemberNode>,
    peer: Incarnation,
    end: OrderlyEnd,
}

impl Linked {
    /// `end` reports how the connection of the link ended.
    pub(crate) fn new(node: &Arc<MemberNode>, peer: Incarnation, end: OrderlyEnd) -> Self {
        node.peers.begin_link(peer);
        // The renewed lease lists this link. After a break, the peer reads from that list whether
        // this node has renewed its lease since, and so whether it is alive.
        node.renew_now.notify_one();
        if !node.members.knows(peer) {
            // The peer may have joined a moment ago. A link in the other direction detects its
            // death as well.
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
