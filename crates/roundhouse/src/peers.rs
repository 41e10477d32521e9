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
    /// The first check is before this returns: a node that stabilises is never ready before.
    /// The lease of a single node is always valid.
    pub(crate) fn start(cluster: &Cluster, readiness: &Readiness) -> Self {
        if cluster.is_alone() {
            return Self(None);
        }
        let (cluster, readiness) = (cluster.clone(), readiness.clone());
        let mut follower = Follower::default();
        follower.look(cluster.is_stable(), cluster.may_act(), &readiness);
        Self(Some(actix_rt::spawn(async move {
            loop {
                // The interval begins after each check: two checks at once would count as two.
                tokio::time::sleep(LOOK).await;
                follower.look(cluster.is_stable(), cluster.may_act(), &readiness);
            }
        })))
    }
}

impl Drop for LeaseWatch {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// What the checks of the lease have found so far.
#[derive(Default)]
struct Follower {
    /// Whether the node was stable at one of them.
    has_started: bool,
    /// How many of the last checks found no lease.
    missed: u32,
}

impl Follower {
    fn look(&mut self, is_stable: bool, may_act: bool, readiness: &Readiness) {
        if self.has_started {
            // All nodes stabilise at the same time, and hold the requests that must wait. If this
            // made a node unready, no node would be ready.
            readiness.remark(STABILISING, !is_stable);
        } else if is_stable {
            readiness.clear(STABILISING);
            self.has_started = true;
        } else {
            readiness.hold(STABILISING);
        }
        // Whenever a peer is lost, the node may not act for a moment; readiness ignores that.
        let could_act = self.missed < LOOKS_WITHOUT;
        self.missed = if may_act { 0 } else { self.missed.saturating_add(1) };
        match (could_act, self.missed < LOOKS_WITHOUT) {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_once_it_was_stable_and_while_it_may_act() {
        let readiness = Readiness::waiting_for("starting");
        let mut follower = Follower::default();
        follower.look(false, true, &readiness);
        assert_eq!(readiness.reasons(), [STABILISING, "starting"]);
        readiness.clear("starting");
        follower.look(true, true, &readiness);
        assert!(readiness.reasons().is_empty());
        // A failover of the store later is a remark.
        follower.look(false, true, &readiness);
        assert!(readiness.reasons().is_empty());
        assert_eq!(readiness.remarks(), [STABILISING]);
        // One look without the lease is ignored, two are not.
        follower.look(true, false, &readiness);
        assert!(readiness.reasons().is_empty());
        follower.look(true, false, &readiness);
        assert_eq!(readiness.reasons(), [REASON]);
        follower.look(true, true, &readiness);
        assert!(readiness.reasons().is_empty());
    }
}
