//! Makes a tenant whose sessions keep too many bytes release some of them.
//!
//! The steps go from what costs clients least to what costs them most: unread reply queues are
//! cut, the fullest first, and their clients resume; events that were delivered are dropped; idle
//! sessions leave memory, unless the store keeps its records in this process. Pending requests, and final responses that a client may still need, are
//! never released. If the steps are not sufficient, new work of the tenant is refused until its
//! sessions keep less (`Registry::take_slot`, and the sessions themselves).

use std::sync::{Arc, Weak};
use std::time::Duration;

use budget::Share;
use conversation::BudgetVerdict;
use telemetry::TenantLabels;

use crate::metrics;
use crate::node::Node;
use crate::session::Relief;
use crate::session_bytes::SessionBytes;

/// The steps, in order.
const STEPS: [Relief; 4] = [
    Relief::CutQueues { from: 1 << 20 },
    Relief::CutQueues { from: 64 << 10 },
    Relief::CutQueues { from: budget::GRANULE_BYTES },
    Relief::Verdict(BudgetVerdict::Trim),
];

/// The last step, if sessions may leave memory.
const SLEEP: Relief = Relief::Verdict(BudgetVerdict::Sleep);

/// How long sessions have to perform a step before the next one is judged.
const STEP_TIME: Duration = Duration::from_millis(20);

/// The shortest time between two rounds of all steps. It doubles while a round does not suffice, so
/// that sessions that cannot release anything are not asked all the time.
const ROUND_TIME_MIN: Duration = Duration::from_millis(500);

/// The longest time between two rounds.
const ROUND_TIME_MAX: Duration = Duration::from_secs(8);

/// The interval at which the metrics of tenants are brought up to date: shorter than any scrape.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// After a relief a tenant keeps an eighth less than its share, so that the next bytes do not lead
/// to another.
fn is_relieved(share: &Share) -> bool {
    !share.is_exceeded() && share.used() <= share.max() - share.max() / 8
}

/// Performs relief each time a share is exceeded, for as long as the node exists. `may_sleep` says
/// whether sessions may leave memory.
pub(crate) async fn relieve_tenants(bytes: SessionBytes, node: Weak<Node>, may_sleep: bool) {
    loop {
        bytes.exceeded().await;
        let mut pause = ROUND_TIME_MIN;
        loop {
            let exceeded = bytes.budget().exceeded();
            if exceeded.is_empty() {
                break;
            }
            for share in exceeded {
                let Some(node) = node.upgrade() else { return };
                if !relieve(&node, &share, may_sleep).await && pause == ROUND_TIME_MIN {
                    warn_of(&share);
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(ROUND_TIME_MAX);
        }
    }
}

/// Shows in the metrics how many sessions tenants have, and how many bytes these keep, for as long
/// as the node exists.
pub(crate) async fn show_tenants(bytes: SessionBytes, labels: TenantLabels, node: Weak<Node>) {
    while let Some(sessions) = node.upgrade().map(|node| node.registry.sessions_by_tenant()) {
        metrics::show_tenants(&labels, bytes.budget(), &sessions);
        tokio::time::sleep(SHOWN_EVERY).await;
    }
}

/// Asks the sessions of a tenant to release bytes, step by step. Returns whether they keep as many
/// as they may.
async fn relieve(node: &Arc<Node>, share: &Share, may_sleep: bool) -> bool {
    metrics::RELIEFS.inc();
    for step in STEPS.into_iter().chain(may_sleep.then_some(SLEEP)) {
        node.registry.for_each(|session| {
            if session.tenant() == share.tenant() {
                session.relieve(step);
            }
        });
        tokio::time::sleep(STEP_TIME).await;
        if is_relieved(share) {
            break;
        }
    }
    !share.is_exceeded()
}

fn warn_of(share: &Share) {
    tracing::warn!(
        tenant = &**share.tenant(),
        bytes = share.used(),
        bytes_max = share.max(),
        "the sessions of a tenant keep more bytes than they may and can release none; its new \
         sessions and requests are refused; raise tenants.*.limits.session_bytes_max or \
         node.session_bytes_max if the tenant needs more"
    );
}
