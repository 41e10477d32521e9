//! This node's place among the others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ownership::machine::LeaseSnapshot;
use protocol::SessionId;
use store::{Claimed, Incarnation, Lease, Record};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::node::MemberNode;
use crate::peer::{Peer, SessionLocation};
use crate::serve::Load;
use crate::{claim, locator};

/// How long peers are served on after all of them should know that this node leaves.
const LAST_CALLS: Duration = Duration::from_millis(100);

/// This node's place among the others. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) node: Arc<MemberNode>,
    /// The lease is to be kept no more.
    pub(crate) leaving: CancellationToken,
    /// It was given up, or could not be.
    pub(crate) left: CancellationToken,
}

impl Cluster {
    /// Does no other node share this node's sessions? Then none can take one over.
    pub fn is_alone(&self) -> bool {
        self.node.is_alone
    }

    /// Where to note how many sessions this node keeps.
    pub fn load(&self) -> Load {
        self.node.load.clone()
    }

    /// This process.
    pub fn incarnation(&self) -> Incarnation {
        self.node.incarnation
    }

    /// Where peers reach this node; empty where none does.
    pub fn address(&self) -> &str {
        &self.node.local.address
    }

    /// May this node act as an owner now? No round trip.
    pub fn may_act(&self) -> bool {
        self.node.lease.generation_if_valid().is_some()
    }

    /// The generation of this node's lease, where it may act as an owner now. Rises whenever
    /// others may have seen the node gone: a session that was claimed in an earlier generation is
    /// claimed anew before anything is done for it.
    pub fn valid_lease_generation(&self) -> Option<u64> {
        self.node.lease.generation_if_valid()
    }

    /// The generation of this node's lease, whether or not it may act. See
    /// [`Cluster::valid_lease_generation`].
    pub fn lease_generation(&self) -> u64 {
        self.node.lease.generation()
    }

    /// Waits until this incarnation was marked dead. It never acts again: end the process.
    pub async fn marked_dead(&self) {
        self.node.lease.incarnation_ended().await;
    }

    /// Where a session is. Answers are kept for a moment; `fresh` reads the record again.
    pub async fn locate(&self, session: &SessionId, fresh: bool) -> Result<SessionLocation, Error> {
        locator::locate(&self.node, session, fresh).await
    }

    /// Takes a session over that [`Cluster::locate`] found without an owner, or with this
    /// node as one that lacks it. One round trip, where nothing is in the way.
    pub async fn claim(
        &self,
        session: &SessionId,
        record: &Record,
        ttl: Duration,
    ) -> Result<Claimed, Error> {
        claim::claim(&self.node, session, record, ttl).await
    }

    /// What this node knows now that matters to its ownership of a session.
    pub fn lease_snapshot(&self, session: &SessionId) -> LeaseSnapshot {
        let now = self.node.lease.now();
        let generation = self.node.failovers.generation(session, now);
        LeaseSnapshot {
            now,
            lease_generation: self.node.lease.generation_if_valid(),
            failover_generation: generation.number,
            stabilisation: generation.stabilisation,
            claimable: generation.claimable,
            primary: generation.primary,
        }
    }

    /// Rises with each failover of the store that this node sees: then the failover generation of a
    /// [`Cluster::lease_snapshot`] may be another. Takes no lock.
    pub fn newest_failover_generation(&self) -> u64 {
        self.node.failovers.newest()
    }

    /// Is stabilisation done, which follows a failover of the store and this node's start?
    pub fn is_stable(&self) -> bool {
        self.node.failovers.is_stable(self.node.lease.now())
    }

    /// Told each time the lease generation or a primary of the store changed, or the permission to
    /// act was lost or came back: owners then have something to do for sessions in which nothing
    /// happens.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.node.changes.subscribe()
    }

    /// How many peers this node has found dead or without a lease.
    pub fn deaths(&self) -> u64 {
        self.node.members.forgotten()
    }

    /// Returns when this node has found more than so many peers gone: a request that waits
    /// for a session of one of them need not wait longer.
    pub fn another_death(&self, than: u64) -> impl Future<Output = ()> + Send + 'static {
        self.node.members.forgotten_more(than)
    }

    /// The leases that were live when this node last looked, its own among them.
    pub fn nodes(&self) -> Vec<Lease> {
        self.node.members.leases()
    }

    /// A node that takes sessions: one that a link is up to, if there is one, and the one
    /// with the fewest sessions. This one is not asked. None where it is alone, or all leave.
    pub fn willing(&self) -> Option<Peer> {
        let order = |lease: &Lease| (!self.node.peers.is_linked(lease.incarnation), lease.load);
        self.peer(self.takers().into_iter().min_by_key(order)?.incarnation)
    }

    /// One of the nodes that take sessions and that a link is up to, another with each turn.
    pub fn linked(&self, turn: usize) -> Option<Peer> {
        let mut linked = self.takers();
        linked.retain(|lease| self.node.peers.is_linked(lease.incarnation));
        linked.sort_unstable_by_key(|lease| lease.incarnation.0);
        self.peer(linked.get(turn.checked_rem(linked.len())?)?.incarnation)
    }

    /// One of the nodes that take sessions and that a link is up to: the one with the fewest
    /// sessions first, and with each turn the next.
    pub fn roomy(&self, turn: usize) -> Option<Peer> {
        let mut linked = self.takers();
        linked.retain(|lease| self.node.peers.is_linked(lease.incarnation));
        linked.sort_unstable_by_key(|lease| (lease.load, lease.incarnation.0));
        self.peer(linked.get(turn.checked_rem(linked.len())?)?.incarnation)
    }

    /// A node through which to call another that cannot be reached from here, with each turn
    /// another one. `None` where that one can be reached, as far as is known, or no node is
    /// linked to both.
    pub fn relay(&self, owner: &Peer, turn: usize) -> Option<Peer> {
        let is_incompatible = owner.link.is_incompatible.load(Ordering::Relaxed);
        if !owner.link.calls.is_unreachable() || is_incompatible {
            return None;
        }
        let (own, owner) = (self.node.incarnation, owner.incarnation());
        let mut relays = self.node.members.leases();
        relays.retain(|lease| {
            ![own, owner].contains(&lease.incarnation) && lease.linked.contains(&owner)
        });
        relays.sort_unstable_by_key(|lease| lease.incarnation.0);
        let relays: Vec<_> =
            relays.iter().filter_map(|lease| self.reachable(lease.incarnation)).collect();
        relays.get(turn.checked_rem(relays.len())?).cloned()
    }

    /// A node, where a link to call it is up.
    pub fn reachable(&self, incarnation: Incarnation) -> Option<Peer> {
        self.peer(incarnation).filter(|peer| peer.link.calls.is_up())
    }

    /// The other nodes that take sessions.
    fn takers(&self) -> Vec<Lease> {
        let own = self.node.incarnation;
        let mut leases = self.node.members.leases();
        leases.retain(|lease| {
            lease.incarnation != own && !lease.draining && !lease.address.is_empty()
        });
        leases
    }

    fn peer(&self, incarnation: Incarnation) -> Option<Peer> {
        let link = self.node.members.link_to(incarnation)?;
        Some(Peer { node: self.node.clone(), link })
    }

    /// Tells the others that this node takes no new sessions.
    pub fn set_draining(&self, draining: bool) {
        self.node.draining.store(draining, Ordering::Relaxed);
        self.node.renew_now.notify_one();
    }

    /// Gives the lease up and closes every link. What peers asked for and did not get is
    /// lost to them.
    pub async fn leave(&self) {
        self.node.lease.give_up();
        self.leaving.cancel();
        self.left.cancelled().await;
        if !self.node.peers.linked().is_empty() {
            // Peers that still call this node are told that nothing was started; when they
            // have looked at the leases once more, they call it no more.
            let look = Duration::from_millis(self.node.settings.renew_ms);
            tokio::time::sleep(look + LAST_CALLS).await;
        }
        self.node.closing.cancel();
    }
}
