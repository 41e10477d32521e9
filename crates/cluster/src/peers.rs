//! Which incarnations this node has a live link to, whichever of the two nodes connected.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use store::Incarnation;

/// Most peers that are told in a lease; a cluster has fewer nodes.
const LISTED_MAX: usize = 1_024;

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
        linked.map(|(peer, _)| *peer).take(LISTED_MAX).collect()
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

    /// A link to the peer has begun.
    pub(crate) fn begin_link(&self, peer: Incarnation) {
        let mut peers = self.peers();
        let links = peers.entry(peer).or_default();
        links.live += 1;
        links.closed = false;
    }

    /// A link to the peer has ended, `closed` in order or not.
    pub(crate) fn end_link(&self, peer: Incarnation, closed: bool) {
        if let Some(links) = self.peers().get_mut(&peer) {
            links.live -= 1;
            links.closed |= closed;
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
