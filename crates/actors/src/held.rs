//! Holds requests that cannot be handled now, up to a bound. Their callers limit the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conversation::Refusal;
use tokio::time::timeout;

use crate::metrics::{self, Hold};
use crate::node::Node;

/// The number of requests that the node holds, and its bound.
pub(crate) struct HeldRequests {
    count: Arc<AtomicUsize>,
    max: usize,
}

impl HeldRequests {
    /// Holds at most `max` requests; a further one is not held.
    pub(crate) fn new(max: usize) -> Self {
        Self { count: Arc::default(), max }
    }

    /// Holds one more request; `None` at the bound.
    pub(crate) fn hold(&self) -> Option<HeldRequest> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.count.fetch_sub(1, Ordering::Relaxed);
            metrics::count_hold(Hold::Refused);
            return None;
        }
        metrics::HELD.inc();
        Some(HeldRequest { count: Arc::clone(&self.count) })
    }
}

/// A held request, until its session is found or may be created here.
pub(crate) struct HeldRequest {
    count: Arc<AtomicUsize>,
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        metrics::HELD.dec();
    }
}

/// Waits until sessions can be created here. After the loss of a peer or of Redis a node may not
/// act for a moment, and no client repeats an `initialize`. A request that cannot be held, or that
/// waits longer than `store_wait_secs`, gets [`Refusal::Unavailable`].
pub(crate) async fn until_sessions_can_be_created(node: &Node) -> Result<(), Refusal> {
    if node.context.valid_lease_generation().is_some() {
        return Ok(());
    }
    let _held = node.held.hold().ok_or(Refusal::Unavailable)?;
    let wait = Duration::from_secs(node.context.settings.store_wait_secs);
    if timeout(wait, until_the_lease_is_valid(node)).await.is_err() {
        metrics::count_hold(Hold::Expired);
        return Err(Refusal::Unavailable);
    }
    metrics::count_hold(Hold::Reached);
    Ok(())
}

/// Also returns when the node begins to drain: then another node creates the session.
async fn until_the_lease_is_valid(node: &Node) {
    let mut changes = node.context.cluster.changes();
    // Neither wait can fail: this node holds the sending ends of both channels.
    tokio::select! {
        _ = changes.wait_for(|_| node.context.valid_lease_generation().is_some()) => {}
        () = node.registry.departed() => {}
    }
}
