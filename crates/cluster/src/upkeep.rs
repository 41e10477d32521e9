//! The tasks that keep a node's place in the cluster, for as long as it has one.

use std::sync::Arc;
use std::time::Duration;

use store::Lease;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::node::MemberNode;
use crate::{dial, metrics};

/// How often this node tries to have former nodes at its address marked dead.
const FORMER_NODE_TRIES: usize = 20;

/// Renews the lease until the node gives it up. What is returned early, or dropped with
/// the runtime, cancels `left` as well.
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
                tracing::warn!(%error, "the lease was not renewed");
                retry
            }
            Err(_) => {
                metrics::RENEWALS_FAILED.inc();
                tracing::warn!("the lease was not renewed: the store does not answer");
                retry
            }
        };
        // Requests wait at sessions from now on, and no longer than they may.
        let can_act = node.lease.generation_if_valid().is_some();
        if std::mem::replace(&mut could_act, can_act) && !can_act {
            node.notify_of_change();
        }
        node.lease.show_age();
    }
    // By the one task that renews, so that no renewal comes after it.
    if timeout(patience, node.give_up_lease()).await.is_err() {
        tracing::warn!("the lease could not be given up and will lapse: no answer");
    }
    drop(left);
}

/// Looks which nodes there are, for as long as this one is of them.
pub(crate) async fn keep_looking(node: Arc<MemberNode>, leaving: CancellationToken) {
    let pause = Duration::from_millis(node.settings.renew_ms);
    link_to_all(&node);
    loop {
        tokio::select! {
            () = leaving.cancelled() => break,
            () = node.look_now.notified() => {}
            () = sleep(pause) => {}
        }
        // What was known stays where the store cannot be asked.
        let looking = async {
            node.look_at_primaries().await?;
            node.refresh_members().await?;
            link_to_all(&node);
            Ok::<_, store::Error>(())
        };
        if let Ok(Err(error)) = timeout(node.settings.lease() / 3, looking).await {
            tracing::debug!(%error, "the store was not looked at");
        }
    }
}

/// Connects to every node that this one has no link to, so that the death of a node is
/// noticed when it happens and not at the next call to it.
fn link_to_all(node: &Arc<MemberNode>) {
    if node.local.address.is_empty() {
        return;
    }
    for link in node.members.links_to_others(node.incarnation) {
        if link.calls.want() {
            dial::connect(node, &link);
        }
    }
}

/// Marks the former nodes at this node's address as dead: this node listens there now, so their
/// processes have ended.
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
            // Its peers may not have noticed yet that their links to it broke.
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
