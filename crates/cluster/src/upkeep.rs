//! The background tasks of a member: lease renewal, and the list of other nodes.

use std::sync::Arc;
use std::time::Duration;

use store::Lease;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::node::MemberNode;
use crate::{dial, metrics};

/// The most attempts to mark former nodes at this node's address dead.
const FORMER_NODE_TRIES: usize = 20;

/// Renews the lease until the node gives it up. Dropping `left` cancels its token, also if this
/// future returns early or is dropped with the runtime.
pub(crate) async fn keep_lease(node: Arc<MemberNode>, leaving: CancellationToken, left: DropGuard) {
    let timing = node.settings.timing();
    let pause = Duration::from_millis(timing.renew_ms);
    let patience = Duration::from_millis(timing.answer_ms());
    let retry = Duration::from_millis(timing.retry_ms());
    let mut next = pause;
    let mut could_act = true;
    loop {
        tokio::select! {
            () = leaving.cancelled() => break,
            () = node.renew_now.notified() => {}
            () = sleep(next) => {}
        }
        next = match timeout(patience, node.renew()).await {
            Ok(Ok(())) => pause,
            Ok(Err(_)) if node.lease.has_ended() => return,
            Ok(Err(error)) => {
                tracing::warn!(%error, "lease renewal failed");
                retry
            }
            Err(_) => {
                metrics::RENEWALS_FAILED.inc();
                tracing::warn!("lease renewal failed: the store did not answer in time");
                retry
            }
        };
        // Requests wait at their sessions while the node may not act, up to their deadline.
        let can_act = node.lease.generation_if_valid().is_some();
        if std::mem::replace(&mut could_act, can_act) && !can_act {
            node.notify_of_change();
        }
        node.lease.show_age();
    }
    // The task that renews also gives up the lease, so that no renewal can follow.
    if timeout(patience, node.give_up_lease()).await.is_err() {
        tracing::warn!(
            "giving up the lease failed: the store did not answer in time; it will expire"
        );
    }
    drop(left);
}

/// Reads the nodes and primaries of the cluster for as long as this node is a member.
pub(crate) async fn keep_looking(node: Arc<MemberNode>, leaving: CancellationToken) {
    let pause = Duration::from_millis(node.settings.renew_ms);
    link_to_all(&node);
    loop {
        tokio::select! {
            () = leaving.cancelled() => break,
            () = node.look_now.notified() => {}
            () = sleep(pause) => {}
        }
        // If the store does not answer, the known nodes are kept.
        let looking = async {
            node.look_at_primaries().await?;
            node.refresh_members().await?;
            link_to_all(&node);
            Ok::<_, store::Error>(())
        };
        if let Ok(Err(error)) = timeout(node.settings.lease() / 3, looking).await {
            tracing::debug!(%error, "reading nodes and primaries from the store failed");
        }
    }
}

/// Connects to every node without a link, so that this node detects a death when it happens and not
/// at the next call.
fn link_to_all(node: &Arc<MemberNode>) {
    if node.local.address.is_empty() {
        return;
    }
    for link in node.members.links_to_others(node.incarnation) {
        if link.calls.request_link() {
            dial::connect(node, &link);
        }
    }
}

/// Marks the former nodes at this node's address dead: their processes have ended, since this node
/// listens there now.
pub(crate) async fn mark_former_nodes(node: Arc<MemberNode>) {
    if node.local.address.is_empty() {
        return;
    }
    let former = |lease: &Lease| {
        lease.address == node.local.address && lease.incarnation != node.incarnation
    };
    let mut former: Vec<_> =
        node.members.leases().iter().filter(|lease| former(lease)).map(|l| l.incarnation).collect();
    for _ in 0..FORMER_NODE_TRIES {
        let mut left = Vec::new();
        for incarnation in former {
            // The peers of the former node may not have noticed yet that their links to it broke.
            if !dial::mark_dead(&node, incarnation, None).await {
                left.push(incarnation);
            }
        }
        if left.is_empty() {
            return;
        }
        former = left;
        let pause = sleep(Duration::from_millis(node.settings.renew_ms / 4));
        if node.closing.run_until_cancelled(pause).await.is_none() {
            return;
        }
    }
}
