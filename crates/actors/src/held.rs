//! Requests that wait until something can be done for them: bounded in number and time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::Cluster;
use conversation::Refusal;
use tokio::time::timeout;

use crate::handle::Node;
use crate::metrics::{self, Hold};

/// A request that is held: until its session is found, or may be opened here.
pub(crate) struct Held {
    node: Arc<Node>,
}

impl Held {
    /// `None` where the node holds as many as it may.
    pub(crate) fn new(node: &Arc<Node>) -> Option<Self> {
        if node.held.fetch_add(1, Ordering::Relaxed) >= node.settings.held_max {
            node.held.fetch_sub(1, Ordering::Relaxed);
            metrics::held(Hold::Refused);
            return None;
        }
        metrics::HELD.inc();
        Some(Self { node: Arc::clone(node) })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.node.held.fetch_sub(1, Ordering::Relaxed);
        metrics::HELD.dec();
    }
}

impl Node {
    /// Waits until sessions can be opened here: while this node may not act for a moment,
    /// since it lost a peer or Redis, no new one could, and no client repeats an `initialize`.
    /// What cannot be held, or not for longer (`store_wait_secs`), is [`Refusal::Unavailable`].
    pub(crate) async fn until_it_may_open(self: &Arc<Self>) -> Result<(), Refusal> {
        let Some(cluster) = self.cluster().filter(|_| self.valid_lease_generation().is_none())
        else {
            return Ok(());
        };
        let _held = Held::new(self).ok_or(Refusal::Unavailable)?;
        let wait = Duration::from_secs(self.settings.store_wait_secs);
        if timeout(wait, self.may_open(cluster)).await.is_err() {
            metrics::held(Hold::Expired);
            return Err(Refusal::Unavailable);
        }
        metrics::held(Hold::Reached);
        Ok(())
    }

    /// A node that leaves has another open it.
    async fn may_open(&self, cluster: &Cluster) {
        let (mut changes, mut departing) = (cluster.changes(), self.departing.subscribe());
        // Neither wait can fail: this node holds the sending ends of both channels.
        tokio::select! {
            _ = changes.wait_for(|_| self.valid_lease_generation().is_some()) => {}
            _ = departing.wait_for(|departs| *departs) => {}
        }
    }
}
