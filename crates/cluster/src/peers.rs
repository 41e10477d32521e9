//! The incarnations to which this node has an established link, whichever of the two nodes
//! connected.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use store::Incarnation;

/// The most peers that a lease lists; a cluster has fewer nodes.
const LISTED_MAX: usize = 1_024;

/// The established links by peer, and peers that had one. Bounded by the number of links and
/// members.
#[derive(Default)]
pub(crate) struct Peers {
    links: Mutex<HashMap<Incarnation, Links>>,
    /// The peers whose processes this node has found dead and that are not marked dead yet.
    found_dead: Mutex<HashSet<Incarnation>>,
}

#[derive(Default)]
struct Links {
    live: usize,
    /// The peer's kernel closed a link or the watch connection in order, and no new one was
    /// established since.
    closed: bool,
}

impl Peers {
    /// The peers with an established link.
    pub(crate) fn linked(&self) -> Vec<Incarnation> {
        let peers = self.peers();
        let linked = peers.iter().filter(|(_, links)| links.live > 0);
        linked.map(|(peer, _)| *peer).take(LISTED_MAX).collect()
    }

    pub(crate) fn is_linked(&self, peer: Incarnation) -> bool {
        self.links_to(peer) > 0
    }

    /// The number of established links to the peer: two in the normal case, one for each direction
    /// of calls.
    pub(crate) fn links_to(&self, peer: Incarnation) -> usize {
        self.peers().get(&peer).map_or(0, |links| links.live)
    }

    /// Whether the peer's kernel closed a link or the watch connection in order, and no new one was
    /// established since. `None` if there was never a link to the peer.
    pub(crate) fn was_closed(&self, peer: Incarnation) -> Option<bool> {
        self.peers().get(&peer).map(|links| links.closed)
    }

    /// Records whether the peer's kernel closed a connection in order. No effect if there was never
    /// a link to the peer.
    pub(crate) fn set_closed(&self, peer: Incarnation, closed: bool) {
        if let Some(links) = self.peers().get_mut(&peer) {
            links.closed = closed;
        }
    }

    /// Records that a link to the peer was established.
    pub(crate) fn begin_link(&self, peer: Incarnation) {
        let mut peers = self.peers();
        let links = peers.entry(peer).or_default();
        links.live += 1;
        links.closed = false;
    }

    /// Records that a link to the peer has ended; `closed`: in order.
    pub(crate) fn end_link(&self, peer: Incarnation, closed: bool) {
        if let Some(links) = self.peers().get_mut(&peer) {
            links.live -= 1;
            links.closed |= closed;
        }
    }

    /// Drops the peers that have no link and are no longer members.
    pub(crate) fn retain(&self, is_member: impl Fn(Incarnation) -> bool) {
        self.peers().retain(|peer, links| links.live > 0 || is_member(*peer));
    }

    /// Records whether this node has found the peer's process dead.
    pub(crate) fn set_found_dead(&self, peer: Incarnation, is_dead: bool) {
        let mut found_dead = self.found_dead.lock().unwrap_or_else(PoisonError::into_inner);
        if is_dead {
            found_dead.insert(peer);
        } else {
            found_dead.remove(&peer);
        }
    }

    /// The other peers that this node has found dead. At most as many as there are links.
    pub(crate) fn found_dead_besides(&self, peer: Incarnation) -> Vec<Incarnation> {
        let found_dead = self.found_dead.lock().unwrap_or_else(PoisonError::into_inner);
        found_dead.iter().copied().filter(|dead| *dead != peer).collect()
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<Incarnation, Links>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
