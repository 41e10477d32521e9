//! What the parts of a node's place in the cluster share: its lease, its links, the other nodes.

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
use crate::{Load, Settings, metrics};
use store::Incarnation;

/// How long the store keeps that a node has left: longer than any renewal of its own may
/// still be on its way. After that, a late renewal would bring the lease back.
const LEFT: Duration = Duration::from_secs(3_600);

/// How long a renewal after the loss of a link is waited for where nothing else is to do.
const DOUBT: Duration = Duration::from_millis(500);

/// How long a node that starts waits for a store that is out of reach: as long as a failover
/// takes. Then it says why, and does not start.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// How long it waits before it tries again.
const START_PAUSE: Duration = Duration::from_millis(200);

/// How often a lease is looked at that names this node's address, while it starts.
const NAMESAKE_PAUSE: Duration = Duration::from_millis(100);

/// How much later than its time a renewal may come, in milliseconds.
const NAMESAKE_LATE_MS: u64 = 250;

/// This node's place among the others.
pub(crate) struct MemberNode {
    pub(crate) settings: Settings,
    pub(crate) incarnation: Incarnation,
    pub(crate) name: Arc<str>,
    pub(crate) store: Arc<dyn Store>,
    /// How many sessions this node keeps.
    pub(crate) load: Load,
    /// No other node shares its sessions.
    pub(crate) is_alone: bool,
    /// What connections to peers are made and taken with.
    pub(crate) local: LocalNode,
    pub(crate) lease: NodeLease,
    pub(crate) failovers: Failovers,
    /// Rises when sessions have something to do: the lease generation or a primary changed,
    /// or the permission to act was lost or came back.
    pub(crate) changes: watch::Sender<u64>,
    pub(crate) peers: Peers,
    pub(crate) members: Members,
    pub(crate) location_cache: LocationCache,
    pub(crate) draining: AtomicBool,
    /// The lease has something new to say.
    pub(crate) renew_now: Notify,
    /// There may be a node that is not known yet.
    pub(crate) look_now: Notify,
    /// Every link ends, and nothing begins any more.
    pub(crate) closing: CancellationToken,
    pub(crate) runtime: Handle,
}

impl MemberNode {
    /// What a renewal says.
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

    /// The lease generation, where the node may act. Where it may not only because it lost a link a
    /// moment ago, that is waited for.
    pub(crate) async fn valid_lease_generation(&self) -> Option<u64> {
        let mut changes = self.changes.subscribe();
        if !self.lease.is_doubted() {
            return self.lease.generation_if_valid();
        }
        let dispelled = changes.wait_for(|_| !self.lease.is_doubted());
        let _ = timeout(DOUBT, dispelled).await;
        self.lease.generation_if_valid()
    }

    /// Has this node held its lease all the time in this generation?
    pub(crate) async fn holds_on(&self, lease_generation: Option<u64>) -> bool {
        lease_generation.is_some() && lease_generation == self.valid_lease_generation().await
    }

    /// Renews the lease once.
    pub(crate) async fn renew(&self) -> Result<(), store::Error> {
        let renewal = self.lease.begin_renewal();
        match self.store.renew(self.lease(&renewal), self.settings.lease()).await {
            Ok(renewed) => {
                if self.lease.renewed(renewal, renewed.was_there) {
                    self.notify_of_change();
                }
                Ok(())
            }
            Err(error) => {
                if let store::Error::MarkedDead { by } = error {
                    tracing::error!(%by, "this node was marked dead; its process must be restarted");
                    self.lease.end_incarnation();
                }
                metrics::RENEWALS_FAILED.inc();
                Err(error)
            }
        }
    }

    /// Fails where another node lives that is told to be at the same address: each would be
    /// taken for the other's successor. A lease that is not renewed for longer than a living
    /// node takes is that of a former process; so a node that comes back after a crash waits
    /// for that time.
    pub(crate) async fn refuse_shared_address(&self) -> Result<(), crate::Error> {
        let until = Instant::now() + START_PATIENCE;
        let namesake = loop {
            match self.namesake().await {
                Err(store::Error::Unavailable(why)) if Instant::now() < until => {
                    tracing::warn!(%why, "the store is out of reach; this node waits to start");
                    sleep(START_PAUSE).await;
                }
                looked => break looked.map_err(crate::Error::Store)?,
            }
        };
        match namesake {
            None => Ok(()),
            Some(lease) => Err(crate::Error::Settings(format!(
                "another node lives that peers are told to reach at {}: {} ({}); give each node \
                 a cluster.advertise of its own, or stop that one first",
                self.local.address, lease.name, lease.incarnation
            ))),
        }
    }

    /// Another node at this node's address whose lease is renewed.
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

    /// Takes the first lease, and learns who else is there.
    pub(crate) async fn take_first_lease(&self) -> Result<(), store::Error> {
        let until = Instant::now() + START_PATIENCE;
        loop {
            match self.try_to_take_first_lease().await {
                Err(store::Error::Unavailable(why)) if Instant::now() < until => {
                    tracing::warn!(%why, "the store is out of reach; this node waits to start");
                    sleep(START_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_to_take_first_lease(&self) -> Result<(), store::Error> {
        self.renew().await?;
        self.look_at_primaries().await?;
        self.refresh_members().await
    }

    /// Learns who keeps the store's data.
    pub(crate) async fn look_at_primaries(&self) -> Result<(), store::Error> {
        let primaries = self.store.primaries().await?;
        let any_new = self.failovers.observe(primaries, self.lease.now());
        // Only now: what the store says is missing is judged by these primaries.
        self.store.acknowledge(&self.failovers.primaries());
        if any_new {
            self.notify_of_change();
        }
        Ok(())
    }

    /// Tells the owners of sessions that something changed.
    pub(crate) fn notify_of_change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Reads the leases of all nodes, and ends the links to nodes whose lease is over. Such a
    /// node may be up and unable to reach the store: a call that waits for it on the link has to
    /// find a node that may act.
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

    /// Is a node's lease over? By the same proof as for claims.
    async fn is_gone(&self, peer: Incarnation) -> Result<bool, store::Error> {
        let lease_generation = self.valid_lease_generation().await;
        let presence = self.store.presence(peer).await?;
        let proves = self.lapse_proves();
        Ok(presence == Presence::Gone && proves.is_ok() && self.holds_on(lease_generation).await)
    }

    /// Does a lease that is not there prove that its node may not act? If not, why.
    pub(crate) fn lapse_proves(&self) -> Result<(), Undecided> {
        let outlasts = self.failovers.lapse_proves(self.lease.now(), self.settings.lease());
        self.lease.lapse_proof(outlasts)
    }

    /// Gives the lease up.
    pub(crate) async fn give_up_lease(&self) {
        if let Err(error) = self.store.leave(self.incarnation, LEFT).await {
            tracing::warn!(%error, "the lease could not be given up and will lapse");
        }
    }
}
