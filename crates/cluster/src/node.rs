//! The shared state of a node's membership: its lease, its links, the other nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ownership::location::Undecided;
use ownership::validity::Renewal;
use peering::LocalNode;
use store::{Lease, Presence, Store};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::failovers::Failovers;
use crate::location_cache::LocationCache;
use crate::members::Members;
use crate::node_lease::NodeLease;
use crate::peers::Peers;
use crate::revocations::Revocations;
use crate::{Load, Settings, metrics};
use store::Incarnation;

/// How long the store keeps the record that a node has left: longer than a renewal of that node can
/// be delayed. A renewal after that would create the lease again.
const LEFT: Duration = Duration::from_secs(3_600);

/// The longest wait for the renewal that follows the loss of a link.
const DOUBT: Duration = Duration::from_millis(500);

/// The wait of a starting node between two attempts to reach the store.
const START_PAUSE: Duration = Duration::from_millis(200);

/// The interval at which a starting node logs that it waits for the store.
const START_LOG: Duration = Duration::from_secs(30);

/// How often a starting node reads a lease that names its own address.
const NAMESAKE_PAUSE: Duration = Duration::from_millis(100);

/// How late a renewal may arrive, in milliseconds.
const NAMESAKE_LATE_MS: u64 = 250;

/// A node's membership in its cluster, shared by its tasks.
pub(crate) struct MemberNode {
    pub(crate) settings: Settings,
    pub(crate) incarnation: Incarnation,
    pub(crate) name: Arc<str>,
    pub(crate) store: Arc<dyn Store>,
    /// The number of sessions on this node.
    pub(crate) load: Load,
    /// Whether this is a cluster of one.
    pub(crate) is_alone: bool,
    /// The identity of this node in handshakes.
    pub(crate) local: LocalNode,
    pub(crate) lease: NodeLease,
    pub(crate) failovers: Failovers,
    pub(crate) revocations: Revocations,
    /// Changes when sessions have to check their ownership: the lease generation, a primary or the
    /// permission to act has changed.
    pub(crate) changes: watch::Sender<u64>,
    pub(crate) peers: Peers,
    pub(crate) members: Members,
    pub(crate) location_cache: LocationCache,
    pub(crate) draining: AtomicBool,
    /// Notified when the content of the lease has changed.
    pub(crate) renew_now: Notify,
    /// Notified when a node may have joined that is not known yet.
    pub(crate) look_now: Notify,
    /// Cancelled when every link is to end and no new one may begin.
    pub(crate) closing: CancellationToken,
    pub(crate) runtime: Handle,
}

impl MemberNode {
    /// The lease that a renewal writes.
    fn lease(&self, renewal: &Renewal) -> Lease {
        Lease {
            incarnation: self.incarnation,
            renewal: renewal.number,
            acknowledged: renewal.acknowledged,
            name: self.name.clone(),
            address: self.local.address.clone(),
            draining: self.draining.load(Ordering::Relaxed),
            load: self.load.sessions(),
            linked: self.peers.linked(),
        }
    }

    /// The lease generation if the node may act, else `None`. If the node may not act only because
    /// it lost a link a moment ago, this waits for the next renewal.
    pub(crate) async fn valid_lease_generation(&self) -> Option<u64> {
        let mut changes = self.changes.subscribe();
        if !self.lease.is_doubted() {
            return self.lease.generation_if_valid();
        }
        let dispelled = changes.wait_for(|_| !self.lease.is_doubted());
        let _ = timeout(DOUBT, dispelled).await;
        self.lease.generation_if_valid()
    }

    /// Whether this node has held its lease without interruption in this generation.
    pub(crate) async fn holds_on(&self, lease_generation: Option<u64>) -> bool {
        lease_generation.is_some() && lease_generation == self.valid_lease_generation().await
    }

    /// Renews the lease once.
    pub(crate) async fn renew(&self) -> Result<(), store::Error> {
        let renewal = self.lease.begin_renewal();
        let renewed = match self.store.renew(self.lease(&renewal), self.settings.lease()).await {
            // The node acts only by a lease whose renewal found it with all revocations.
            Ok(renewed) => {
                let read = self.revocations.catch_up(&*self.store, renewed.revocations).await;
                read.map(|()| renewed)
            }
            Err(error) => Err(error),
        };
        match renewed {
            Ok(renewed) => {
                if self.lease.renewed(renewal, renewed.was_there) {
                    self.notify_of_change();
                }
                Ok(())
            }
            Err(error) => {
                if let store::Error::MarkedDead { by } = error {
                    tracing::error!(%by, "this node was marked dead; restart its process");
                    self.lease.end_incarnation();
                }
                metrics::RENEWALS_FAILED.inc();
                Err(error)
            }
        }
    }

    /// Fails if another live node has the same address: each would be taken for the other's
    /// successor. A lease that is not renewed in time belongs to a former process, so a node that
    /// restarts after a crash waits for that time.
    pub(crate) async fn refuse_shared_address(&self) -> Result<(), crate::Error> {
        match until_reachable(|| self.namesake()).await.map_err(crate::Error::Store)? {
            None => Ok(()),
            Some(lease) => Err(crate::Error::Settings(format!(
                "another live node advertises the address {}: {} ({}); give each node \
                 a cluster.advertise of its own, or stop that one first",
                self.local.address, lease.name, lease.incarnation
            ))),
        }
    }

    /// The lease of another node at this node's address, if it is renewed.
    async fn namesake(&self) -> Result<Option<Lease>, store::Error> {
        let same = |lease: &Lease| {
            lease.address == self.local.address && lease.incarnation != self.incarnation
        };
        let mut seen = self.store.nodes().await?;
        seen.retain(same);
        let overdue = self.settings.renew_ms + self.settings.renew_ms / 4 + NAMESAKE_LATE_MS;
        let until = Instant::now() + Duration::from_millis(overdue);
        while !seen.is_empty() && Instant::now() < until {
            sleep(NAMESAKE_PAUSE).await;
            for lease in self.store.nodes().await?.into_iter().filter(same) {
                let is_later = |before: &Lease| {
                    before.incarnation == lease.incarnation && before.renewal < lease.renewal
                };
                if seen.iter().any(is_later) {
                    return Ok(Some(lease));
                }
            }
        }
        Ok(None)
    }

    /// Acquires the first lease, and reads the primaries and the other nodes.
    pub(crate) async fn take_first_lease(&self) -> Result<(), store::Error> {
        until_reachable(|| self.try_to_take_first_lease()).await
    }

    async fn try_to_take_first_lease(&self) -> Result<(), store::Error> {
        self.renew().await?;
        self.look_at_primaries().await?;
        self.refresh_members().await
    }

    /// Reads the primaries of the store.
    pub(crate) async fn look_at_primaries(&self) -> Result<(), store::Error> {
        let primaries = self.store.primaries().await?;
        let any_new = self.failovers.observe(primaries, self.lease.now());
        // Acknowledged after the update: a missing record is judged by these primaries.
        self.store.acknowledge(&self.failovers.primaries());
        if any_new {
            self.notify_of_change();
        }
        Ok(())
    }

    /// Notifies the owners of sessions that the lease or the store has changed.
    pub(crate) fn notify_of_change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Reads the leases of all nodes, and ends the links to nodes whose lease is over. Such a node
    /// may run without access to the store: a call that waits for it must be sent to a node that
    /// may act.
    pub(crate) async fn refresh_members(&self) -> Result<(), store::Error> {
        let leases = self.store.nodes().await?;
        for link in self.members.refresh(leases) {
            if self.is_gone(link.incarnation).await? {
                link.lapsed.notify_waiters();
            }
        }
        self.peers.retain(|peer| self.members.knows(peer));
        Ok(())
    }

    /// Whether a node's lease is over, by the same proof as for claims.
    async fn is_gone(&self, peer: Incarnation) -> Result<bool, store::Error> {
        let lease_generation = self.valid_lease_generation().await;
        let presence = self.store.presence(peer).await?;
        let proves = self.lapse_proves();
        Ok(presence == Presence::Gone && proves.is_ok() && self.holds_on(lease_generation).await)
    }

    /// Checks whether a missing lease proves that its node may not act. The error is the reason why
    /// not.
    pub(crate) fn lapse_proves(&self) -> Result<(), Undecided> {
        let outlasts = self.failovers.lapse_proves(self.lease.now(), self.settings.lease());
        self.lease.lapse_proof(outlasts)
    }

    /// Gives up the lease.
    pub(crate) async fn give_up_lease(&self) {
        if let Err(error) = self.store.leave(self.incarnation, LEFT).await {
            tracing::warn!(%error, "giving up the lease failed; it will expire");
        }
    }
}

/// Repeats an operation of a starting node for as long as the store cannot be reached. The node is
/// not ready meanwhile, and logs that it waits: at once, and then every 30 s.
async fn until_reachable<T, F: Future<Output = Result<T, store::Error>>>(
    operation: impl Fn() -> F,
) -> Result<T, store::Error> {
    let mut log_at = Instant::now();
    loop {
        match operation().await {
            Err(store::Error::Unavailable(why)) => {
                if Instant::now() >= log_at {
                    tracing::warn!(
                        %why,
                        "the store cannot be reached; the node is not ready until it answers: start \
                         it, or check `store.url` and the password"
                    );
                    log_at = Instant::now() + START_LOG;
                }
                sleep(START_PAUSE).await;
            }
            outcome => return outcome,
        }
    }
}
