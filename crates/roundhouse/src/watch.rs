//! Checks whether the store can be reached, and reports it in `/readyz` and a metric. Shows the server
//! processes of tenants in metrics.
//!
//! A node of a cluster without its store may still answer until its lease lapses; if it were
//! unready, the balancer would remove all nodes at once. A node on its own cannot create a session
//! without its store, so it is not ready.

use std::sync::Arc;
use std::time::Duration;

use budget::Budget;
use store::Store;
use telemetry::{Readiness, TenantLabels};

use crate::metrics;

/// Time between two checks. A check sends nothing, but it wakes a thread that may sleep.
const LOOK: Duration = Duration::from_secs(1);

const REMARK: &str = "the store cannot be reached";

/// Checks until it is aborted.
pub(crate) async fn store(store: Arc<dyn Store>, readiness: Readiness, is_alone: bool) {
    let mut next = tokio::time::interval(LOOK);
    loop {
        next.tick().await;
        match (is_alone, store.is_reachable()) {
            (false, is_reachable) => readiness.remark(REMARK, !is_reachable),
            (true, true) => readiness.clear(REMARK),
            (true, false) => readiness.hold(REMARK),
        }
    }
}

/// The interval at which the metrics of tenants are brought up to date: shorter than any scrape.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// Shows how many server processes each tenant has, until it is aborted.
pub(crate) async fn children(budget: Budget, labels: TenantLabels) {
    let mut next = tokio::time::interval(SHOWN_EVERY);
    loop {
        next.tick().await;
        metrics::show_children(&labels, &budget);
    }
}
