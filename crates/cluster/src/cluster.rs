//! The public handle of a node's membership in its cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ownership::machine::LeaseSnapshot;
use protocol::SessionId;
use store::{Claimed, Incarnation, Lease, Record, Revocation};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::node::MemberNode;
use crate::peer::{Peer, SessionLocation};
use crate::revocations::{Revocations, now_ms};
use crate::serve::Load;
use crate::{claim, locator};

/// How long this node still serves peers after all of them should have read that it leaves.
const LAST_CALLS: Duration = Duration::from_millis(100);

/// This node's membership in its cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) node: Arc<MemberNode>,
    /// Cancelled when the node is to give up its lease.
    pub(crate) leaving: CancellationToken,
    /// Cancelled when the lease was given up, or the attempt failed.
    pub(crate) left: CancellationToken,
}

impl Cluster {
    /// Whether this node is a cluster of one. Then no other node can take over its sessions.
    pub fn is_alone(&self) -> bool {
        self.node.is_alone
    }

    /// The counter of this node's sessions, which the lease announces to peers.
    pub fn load(&self) -> Load {
        self.node.load.clone()
    }

    /// The incarnation of this process.
    pub fn incarnation(&self) -> Incarnation {
        self.node.incarnation
    }

    /// This node's name for operators; empty in a cluster of one without a name.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.node.name)
    }

    /// The name of a node for operators; its incarnation if it holds no lease that is known.
    pub fn name_of(&self, incarnation: Incarnation) -> Arc<str> {
        self.node.members.name_of(incarnation).unwrap_or_else(|| incarnation.to_string().into())
    }

    /// The address at which peers reach this node; empty in a cluster of one.
    pub fn address(&self) -> &str {
        &self.node.local.address
    }

    /// Whether this node may act as an owner now. No round trip.
    pub fn may_act(&self) -> bool {
        self.node.lease.generation_if_valid().is_some()
    }

    /// The generation of this node's lease if the node may act as an owner now, else `None`. The
    /// generation rises whenever other nodes may have seen this node without a lease. A session
    /// that was claimed in an earlier generation must be claimed again before the node acts for it.
    pub fn valid_lease_generation(&self) -> Option<u64> {
        self.node.lease.generation_if_valid()
    }

    /// The generation of this node's lease, whether or not it may act. See
    /// [`Cluster::valid_lease_generation`].
    pub fn lease_generation(&self) -> u64 {
        self.node.lease.generation()
    }

    /// Waits until this incarnation is marked dead. It never acts again: end the process.
    pub async fn marked_dead(&self) {
        self.node.lease.incarnation_ended().await;
    }

    /// Locates a session. Results are cached; `fresh` bypasses the cache and reads the record
    /// again.
    pub async fn locate(&self, session: &SessionId, fresh: bool) -> Result<SessionLocation, Error> {
        locator::locate(&self.node, session, fresh).await
    }

    /// Claims a session that [`Cluster::locate`] found without an owner, or owned by this node,
    /// which does not have it. One round trip in the common case.
    pub async fn claim(
        &self,
        session: &SessionId,
        record: &Record,
        ttl: Duration,
    ) -> Result<Claimed, Error> {
        claim::claim(&self.node, session, record, ttl).await
    }

    /// The state of this node's lease and of the store that decides on its ownership of a session.
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

    /// The newest failover generation of the store that this node has observed. When it rises, the
    /// failover generation in a [`Cluster::lease_snapshot`] may have changed. Takes no lock.
    pub fn newest_failover_generation(&self) -> u64 {
        self.node.failovers.newest()
    }

    /// Whether the stabilisation that follows a failover of the store, or the start of this node,
    /// is done.
    pub fn is_stable(&self) -> bool {
        self.node.failovers.is_stable(self.node.lease.now())
    }

    /// Changes each time the lease generation, a primary of the store, or the node's permission to
    /// act changes. Owners then check sessions in which nothing else happens.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.node.changes.subscribe()
    }

    /// How many peers this node has found dead or without a lease so far.
    pub fn deaths(&self) -> u64 {
        self.node.members.forgotten()
    }

    /// Returns when [`Cluster::deaths`] exceeds `than`. A request that waits for a session of a
    /// lost peer is then retried at once.
    pub fn another_death(&self, than: u64) -> impl Future<Output = ()> + Send + 'static {
        self.node.members.until_more_forgotten(than)
    }

    /// The revocations that this node knows.
    pub fn revocations(&self) -> &Revocations {
        &self.node.revocations
    }

    /// Reads the revocations of the store if it has others than this node, and writes those that it lacks.
    pub async fn read_revocations(&self) -> Result<(), Error> {
        let generation = self.node.store.revocation_generation().await.map_err(Error::Store)?;
        self.node.revocations.catch_up(&*self.node.store, generation).await.map_err(Error::Store)
    }

    /// Whether the store may lack revocations that this node knows.
    pub fn has_unwritten_revocations(&self) -> bool {
        self.node.revocations.differ()
    }

    /// Forgets the revocations that have ended.
    pub fn remove_ended_revocations(&self) {
        self.node.revocations.remove_ended();
    }

    /// Writes revocations to the store. Returns once it has acknowledged them.
    pub async fn write_revocations(&self, revocations: &[Revocation]) -> Result<(), Error> {
        self.node.store.revoke(revocations, now_ms()).await.map(drop).map_err(Error::Store)
    }

    /// Whether each other node that is known reads payload versions of which this holds. The version of a
    /// node to which there was never a link is not known.
    pub fn all_peers_read(&self, reads: impl Fn(Option<u32>) -> bool) -> bool {
        self.node.members.all_links(self.node.incarnation, |link| {
            reads(link.and_then(|link| link.payload_version.get().copied()))
        })
    }

    /// The peers to which a link for calls is established.
    pub fn linked_peers(&self) -> Vec<Peer> {
        let others = self.node.members.leases();
        let others = others.iter().filter(|lease| lease.incarnation != self.node.incarnation);
        others.filter_map(|lease| self.reachable(lease.incarnation)).collect()
    }

    /// The leases that were live when this node last read them, its own included.
    pub fn nodes(&self) -> Vec<Lease> {
        self.node.members.leases()
    }

    /// The best peer that accepts sessions: one with an established link before others, then the
    /// one with the fewest sessions. `None` in a cluster of one, or if every other node drains.
    pub fn willing(&self) -> Option<Peer> {
        let order = |lease: &Lease| (!self.node.peers.is_linked(lease.incarnation), lease.load);
        self.peer(self.accepting_peers().into_iter().min_by_key(order)?.incarnation)
    }

    /// A peer that accepts sessions and has an established link; the next one with each `turn`.
    pub fn linked(&self, turn: usize) -> Option<Peer> {
        let mut linked = self.accepting_peers();
        linked.retain(|lease| self.node.peers.is_linked(lease.incarnation));
        linked.sort_unstable_by_key(|lease| lease.incarnation.0);
        self.peer(linked.get(turn.checked_rem(linked.len())?)?.incarnation)
    }

    /// A peer that accepts sessions and has an established link, ordered by load: `turn` 0 is the
    /// peer with the fewest sessions.
    pub fn roomy(&self, turn: usize) -> Option<Peer> {
        let mut linked = self.accepting_peers();
        linked.retain(|lease| self.node.peers.is_linked(lease.incarnation));
        linked.sort_unstable_by_key(|lease| (lease.load, lease.incarnation.0));
        self.peer(linked.get(turn.checked_rem(linked.len())?)?.incarnation)
    }

    /// A node that can relay calls to an `owner` that this node cannot reach; the next one with
    /// each `turn`. `None` if the owner is reachable as far as is known, if it runs an incompatible
    /// program, or if no node is linked to both.
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

    /// The peer with this incarnation, if a link for calls to it is established.
    pub fn reachable(&self, incarnation: Incarnation) -> Option<Peer> {
        self.peer(incarnation).filter(|peer| peer.link.calls.is_up())
    }

    /// The leases of the other nodes that accept sessions.
    fn accepting_peers(&self) -> Vec<Lease> {
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

    /// Announces in the lease whether this node accepts new sessions.
    pub fn set_draining(&self, draining: bool) {
        self.node.draining.store(draining, Ordering::Relaxed);
        self.node.renew_now.notify_one();
    }

    /// Gives up the lease and closes every link. Calls of peers that have no reply by then are
    /// lost.
    pub async fn leave(&self) {
        self.node.lease.give_up();
        self.leaving.cancel();
        self.left.cancelled().await;
        if !self.node.peers.linked().is_empty() {
            // This node answers further calls of peers with "not started". The peers stop calling
            // once they have read the leases again.
            let look = Duration::from_millis(self.node.settings.renew_ms);
            tokio::time::sleep(look + LAST_CALLS).await;
        }
        self.node.closing.cancel();
    }
}
