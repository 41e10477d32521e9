//! Which incarnations this node has a live link to, whichever of the two nodes connected.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peering::OrderlyEnd;

use crate::Incarnation;
use crate::node::Node;

/// Most peers that are told in a lease; a cluster has fewer nodes.
const TOLD_MAX: usize = 1_024;

/// The links that there are to whom, or were once. As many as there are links and members.
#[derive(Default)]
pub(crate) struct Peers {
    links: Mutex<HashMap<Incarnation, Links>>,
    /// Those whose processes this node has seen to be dead, and which are not marked yet.
    found_dead: Mutex<HashSet<Incarnation>>,
}

#[derive(Default)]
struct Links {
    live: usize,
    /// The peer's system closed one, or the connection that watches it, and none was made since.
    closed: bool,
}

impl Peers {
    /// Whom there is a live link to.
    pub(crate) fn linked(&self) -> Vec<Incarnation> {
        let peers = self.peers();
        let linked = peers.iter().filter(|(_, links)| links.live > 0);
        linked.map(|(peer, _)| *peer).take(TOLD_MAX).collect()
    }

    pub(crate) fn is_linked(&self, peer: Incarnation) -> bool {
        self.links_to(peer) > 0
    }

    /// How many live links there are to it; two when all is well, one for each way of calling.
    pub(crate) fn links_to(&self, peer: Incarnation) -> usize {
        self.peers().get(&peer).map_or(0, |links| links.live)
    }

    /// Was there ever a link to it? Then: did its system close one, or the connection that
    /// watches it, and none was made since?
    pub(crate) fn was_closed(&self, peer: Incarnation) -> Option<bool> {
        self.peers().get(&peer).map(|links| links.closed)
    }

    /// Notes whether the peer's system has closed a connection in order; of no use where there
    /// never was a link.
    pub(crate) fn set_closed(&self, peer: Incarnation, closed: bool) {
        if let Some(links) = self.peers().get_mut(&peer) {
            links.closed = closed;
        }
    }

    /// Forgets whom there is no link to and who is not asked for any more.
    pub(crate) fn retain(&self, is_member: impl Fn(Incarnation) -> bool) {
        self.peers().retain(|peer, links| links.live > 0 || is_member(*peer));
    }

    /// Notes whether this node has just seen that a peer's process is dead.
    pub(crate) fn set_found_dead(&self, peer: Incarnation, is_dead: bool) {
        let mut found_dead = self.found_dead.lock().unwrap_or_else(PoisonError::into_inner);
        if is_dead {
            found_dead.insert(peer);
        } else {
            found_dead.remove(&peer);
        }
    }

    /// Which other peers this node has just seen to be dead. At most as many as there are links.
    pub(crate) fn found_dead_besides(&self, peer: Incarnation) -> Vec<Incarnation> {
        let found_dead = self.found_dead.lock().unwrap_or_else(PoisonError::into_inner);
        found_dead.iter().copied().filter(|dead| *dead != peer).collect()
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<Incarnation, Links>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A live link. Dropped when it ends, whereupon the lease is renewed at once: a node that
/// loses a link may be the one that is taken for dead.
pub(crate) struct Linked {
    node: Arc<Node>,
    peer: Incarnation,
    end: OrderlyEnd,
}

impl Linked {
    /// `end` is that of the link's connection.
    pub(crate) fn new(node: &Arc<Node>, peer: Incarnation, end: OrderlyEnd) -> Self {
        let mut peers = node.peers.peers();
        let links = peers.entry(peer).or_default();
        links.live += 1;
        links.closed = false;
        drop(peers);
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
        if let Some(links) = self.node.peers.peers().get_mut(&self.peer) {
            links.live -= 1;
            links.closed |= self.end.was_seen();
        }
        self.node.lease.doubt();
        self.node.renew_now.notify_one();
    }
}
