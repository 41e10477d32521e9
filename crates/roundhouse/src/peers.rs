//! The node among others: joined where `[cluster]` says so, left in order.

use std::sync::Arc;
use std::time::Duration;

use actors::Handle;
use cluster::Cluster;
use store::Store;
use telemetry::Readiness;

/// How often the lease is looked at. Readiness follows it by at most twice this; sessions
/// ask for themselves, each time.
const LOOK: Duration = Duration::from_millis(250);

/// So many looks in a row must find the lease lost.
const LOOKS_WITHOUT: u32 = 2;

/// Why a node whose lease is lost should be sent nothing.
const REASON: &str = "the lease is lost";

/// Why a node that has just started should be sent nothing yet: it does not know what its
/// store has forgotten, and takes no session up.
const STABILISING: &str =
    "stabilising: the store has another primary than before, or the node has just started";

/// The cluster as a running node has it; none for a node on its own.
pub(crate) struct Peers(Option<Joined>);

struct Joined {
    cluster: Cluster,
    watching: actix_rt::task::JoinHandle<()>,
}

impl Peers {
    /// Joins the cluster, and connects the node's sessions to it. Call this before the node
    /// accepts clients.
    pub(crate) async fn join(
        settings: &cluster::Settings,
        store: &Arc<dyn Store>,
        handle: &Handle,
        readiness: &Readiness,
    ) -> Result<Self, cluster::Error> {
        if settings.listen.is_empty() {
            return Ok(Self(None));
        }
        let cluster = Cluster::join(settings.clone(), Arc::clone(store), handle.serving()).await?;
        handle.join(cluster.clone());
        let watching = actix_rt::spawn(watch(cluster.clone(), readiness.clone()));
        Ok(Self(Some(Joined { cluster, watching })))
    }

    /// Is there no cluster, whose other nodes could take sessions over?
    pub(crate) fn is_alone(&self) -> bool {
        self.0.is_none()
    }

    /// Returns when others have taken this process for dead, which they do only once.
    pub(crate) async fn marked_dead(&self) {
        match &self.0 {
            Some(joined) => joined.cluster.marked_dead().await,
            None => std::future::pending().await,
        }
    }

    /// Gives the lease up. To be done when no session is left.
    pub(crate) async fn leave(self) {
        if let Some(joined) = self.0 {
            joined.watching.abort();
            joined.cluster.leave().await;
        }
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
            // All nodes are stabilising at once, and hold the requests that must wait: to send
            // none here would send none to any node.
            readiness.remark(STABILISING, !is_stable);
        } else if is_stable {
            readiness.clear(STABILISING);
            has_started = true;
        } else {
            readiness.hold(STABILISING);
        }
        // Whenever a peer is lost the node may not act for a moment; readiness ignores that.
        missed = if cluster.may_act() { 0 } else { missed.saturating_add(1) };
        let can_act = missed < LOOKS_WITHOUT;
        match (could_act, can_act) {
            (true, false) => {
                tracing::warn!("{REASON}; sessions of this node wait until it is renewed");
                readiness.hold(REASON);
            }
            (false, true) => {
                tracing::info!("the lease is renewed");
                readiness.clear(REASON);
            }
            _ => {}
        }
        could_act = can_act;
    }
}
