//! Looks whether the store can be reached, for operators: `/readyz` says so, and a metric.
//! It keeps no work away. A node whose store is gone still answers what it may answer until
//! its lease lapses, and then all of them would be gone from the balancer at once.

use std::sync::Arc;
use std::time::Duration;

use store::Store;
use telemetry::Readiness;

/// Time between two checks. A check sends nothing, but it wakes a thread that may sleep.
const LOOK: Duration = Duration::from_secs(1);

const REMARK: &str = "the store cannot be reached";

/// Watches until it is aborted.
pub(crate) async fn store(store: Arc<dyn Store>, readiness: Readiness) {
    let mut next = tokio::time::interval(LOOK);
    loop {
        next.tick().await;
        readiness.remark(REMARK, !store.is_reachable());
    }
}
