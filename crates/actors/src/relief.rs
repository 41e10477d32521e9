//! Makes a tenant whose sessions keep too many bytes release some of them.
//!
//! The steps go from what costs clients least to what costs them most: unread reply queues are
//! cut, the fullest first, and their clients resume; events that were delivered are dropped; idle
//! sessions leave memory, unless the store keeps its records in this process. Pending requests, and
//! final responses that a client may still need, are never released. If the steps are not sufficient,
//! new work of the tenant is refused until its sessions keep less (`Registry::take_slot`, and the
//! sessions themselves).
//!
//! The tenant with the largest excess comes first. The others release only what still exceeds their
//! shares then.

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Weak};
use std::time::Duration;

use budget::Share;
use conversation::BudgetVerdict;
use telemetry::TenantLabels;
use tokio::time::{Instant, sleep_until};

use crate::node::Node;
use crate::session::Relief;
use crate::session_bytes::SessionBytes;
use crate::{clock, metrics};

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

/// The shortest time between two rounds of all steps for a tenant. It doubles while a round does not
/// suffice, so that sessions that cannot release anything are not asked all the time.
const ROUND_TIME_MIN: Duration = Duration::from_millis(500);

/// The longest time between two rounds for a tenant.
const ROUND_TIME_MAX: Duration = Duration::from_secs(8);

/// The interval at which the metrics of tenants are brought up to date: shorter than any scrape.
const SHOWN_EVERY: Duration = Duration::from_secs(1);

/// After a relief a tenant keeps an eighth less than its share, so that the next bytes do not lead
/// to another.
fn is_relieved(share: &Share) -> bool {
    let max = share.max();
    !share.is_exceeded() && share.used() <= max - max / 8
}

/// Performs relief each time a share is exceeded, for as long as the node exists. `may_sleep` says
/// whether sessions may leave memory.
pub(crate) async fn relieve_tenants(bytes: SessionBytes, node: Weak<Node>, may_sleep: bool) {
    let mut rounds = Rounds::default();
    loop {
        let is_due = async {
            match rounds.next() {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = bytes.exceeded() => {}
            () = is_due => {}
        }
        let exceeded = bytes.budget().exceeded();
        rounds.keep(|tenant| exceeded.iter().any(|share| share.tenant() == tenant));
        for share in exceeded {
            // The shares before it may have released enough.
            if !rounds.is_due(share.tenant(), Instant::now()) || !share.is_exceeded() {
                continue;
            }
            let Some(node) = node.upgrade() else { return };
            let suffices = relieve(&node, &share, may_sleep).await;
            if rounds.end(share.tenant(), suffices, Instant::now()).is_first_failure() {
                warn_of(&share);
            }
        }
        // A share that exceeds its bounds during its pause may notify all the time.
        tokio::time::sleep(STEP_TIME).await;
    }
}

/// When the tenants that exceed their shares may have their next round. Has only tenants that were
/// named.
#[derive(Debug, Default)]
struct Rounds(HashMap<Arc<str>, Round>);

/// The last round of a tenant.
#[derive(Debug)]
struct Round {
    /// The time of the next one.
    next: Instant,
    /// How many rounds in a row did not suffice.
    failures: u32,
}

impl Round {
    fn is_first_failure(&self) -> bool {
        self.failures == 1
    }
}

impl Rounds {
    /// Forgets the tenants of which this is not true.
    fn keep(&mut self, exceeds: impl Fn(&Arc<str>) -> bool) {
        self.0.retain(|tenant, _| exceeds(tenant));
    }

    fn is_due(&self, tenant: &Arc<str>, now: Instant) -> bool {
        self.0.get(tenant).is_none_or(|round| round.next <= now)
    }

    /// Sets the pause after a round.
    fn end(&mut self, tenant: &Arc<str>, suffices: bool, now: Instant) -> &Round {
        let former = self.0.get(tenant).map_or(0, |round| round.failures);
        let failures = if suffices { 0 } else { former.saturating_add(1) };
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let pause = ROUND_TIME_MIN.saturating_mul(doubled).min(ROUND_TIME_MAX);
        let round = Round { next: now + pause, failures };
        self.0.entry(Arc::clone(tenant)).insert_entry(round).into_mut()
    }

    /// The time of the next round of any tenant.
    fn next(&self) -> Option<Instant> {
        self.0.values().map(|round| round.next).min()
    }
}

/// Drops the charges of sleeping sessions that have expired, and shows in the metrics how many sessions
/// tenants have, and how many bytes these keep, for as long as the node exists.
pub(crate) async fn show_tenants(bytes: SessionBytes, labels: TenantLabels, node: Weak<Node>) {
    while let Some(node) = node.upgrade() {
        node.context.sleeping_bytes.drop_expired(clock::now());
        metrics::show_tenants(&labels, &bytes, &node.registry.sessions_by_tenant());
        metrics::show_limits(&labels, node.limits.used());
        drop(node);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_of_a_tenant_that_cannot_release_bytes_delays_no_other() {
        let (one, other) = (Arc::from("one"), Arc::from("other"));
        let (mut rounds, mut now) = (Rounds::default(), Instant::now());
        for (round, wanted) in [500, 1_000, 2_000, 4_000, 8_000, 8_000].into_iter().enumerate() {
            assert!(rounds.is_due(&one, now));
            let is_first = rounds.end(&one, false, now).is_first_failure();
            assert_eq!(is_first, round == 0, "it is logged once");
            let next = now + Duration::from_millis(wanted);
            assert_eq!(rounds.next(), Some(next));
            assert!(!rounds.is_due(&one, next - Duration::from_millis(1)));
            assert!(rounds.is_due(&other, now), "the other has no pause");
            now = next;
        }
        assert!(rounds.end(&other, false, now).is_first_failure(), "the other is logged as well");
        assert_eq!(rounds.next(), Some(now));
    }

    #[test]
    fn a_round_that_suffices_ends_the_long_pauses() {
        let one = Arc::from("one");
        let (mut rounds, now) = (Rounds::default(), Instant::now());
        for _ in 0..4 {
            rounds.end(&one, false, now);
        }
        rounds.end(&one, true, now);
        assert_eq!(rounds.next(), Some(now + ROUND_TIME_MIN));
        rounds.keep(|_| false);
        assert_eq!(rounds.next(), None);
        assert!(rounds.is_due(&one, now));
    }
}
