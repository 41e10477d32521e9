//! Joins the cluster of the settings, and makes the node's readiness follow its lease.

use std::sync::Arc;
use std::time::Duration;

use actix_rt::task::JoinHandle;
use cluster::{Cluster, Membership};
use store::Store;
use telemetry::Readiness;

/// The interval at which the lease is checked. Readiness follows it within twice this time.
/// Sessions check the lease themselves, before each step.
const LOOK: Duration = Duration::from_millis(250);

/// Readiness changes after this many consecutive checks without a lease.
const LOOKS_WITHOUT: u32 = 2;

/// The reason in `/readyz` while the lease is lost.
const REASON: &str = "the lease is lost";

/// The reason in `/readyz` during stabilisation: the node does not know what its store has
/// forgotten, and claims no session.
const STABILISING: &str =
    "stabilising: the store has another primary than before, or the node has just started";

/// Joins the cluster of the settings; a node without one is a cluster of one.
pub(crate) async fn join(
    settings: &cluster::Settings,
    store: &Arc<dyn Store>,
) -> Result<Membership, cluster::Error> {
    if settings.listen.is_empty() {
        let membership = Cluster::alone(Arc::clone(store));
        // A store that outlives this process may have revocations: before the first request.
        while let Err(error) = membership.cluster().read_revocations().await {
            tracing::debug!(%error, "reading revocations failed; trying again");
            tokio::time::sleep(LOOK).await;
        }
        return Ok(membership);
    }
    Cluster::join(settings.clone(), Arc::clone(store), actors::PAYLOAD_VERSIONS).await
}

/// Makes the node's readiness follow its lease, until it is dropped.
pub(crate) struct LeaseWatch(Option<JoinHandle<()>>);

impl LeaseWatch {
    /// The lease of a single node is always valid.
    pub(crate) fn start(cluster: &Cluster, readiness: &Readiness) -> Self {
        let watches = !cluster.is_alone();
        Self(watches.then(|| actix_rt::spawn(watch(cluster.clone(), readiness.clone()))))
    }
}

impl Drop for LeaseWatch {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

async fn watch(cluster: Cluster, readiness: Readiness) {
    let mut next = tokio::time::interval(LOOK);
    let mut could_act = true;
    let mut missed: u32 = 0;
    let mut has_started = false;
    loop {
        next.tick().await;
        let is_stable = cluster.is_stable();
        if has_started {
            // All nodes stabilise at the same time, and hold the requests that must wait. If this
            // made a node unready, no node would be ready.
            readiness.remark(STABILISING, !is_stable);
        } else if is_stable {
            readiness.clear(STABILISING);
            has_started = true;
        } else {
            readiness.hold(STABILISING);
        }
        // Whenever a peer is lost, the node may not act for a moment; readiness ignores that.
        missed = if cluster.may_act() { 0 } else { missed.saturating_add(1) };
        let can_act = missed < LOOKS_WITHOUT;
        match (could_act, can_act) {
            (true, false) => {
                tracing::warn!(
                    "{REASON}; sessions of this node wait until the lease is renewed; check that the \
                     store can be reached"
                );
                readiness.hold(REASON);
            }
            (false, true) => {
                tracing::info!("the lease is renewed; sessions go on");
                readiness.clear(REASON);
            }
            _ => {}
        }
        could_act = can_act;
    }
}
