//! Which limits are reported, and what counts.

use std::collections::HashSet;

use super::round::ROUND_MAX;
use super::*;

const RATE: Rate = Rate { per_sec: 100.0, burst: 100.0 };

/// A node with as many clients of a tenant that have a rate of their own.
fn with_clients(node: &NodeLimits, tenant: &str, clients: usize) {
    for client in 0..clients {
        let entry = node.rate(tenant, ("each", "requests"), &format!("key:{client}"), RATE);
        assert!(!matches!(entry.take(1, 0, 1, node.now()), Taken::Forgotten));
    }
}

/// The ids that are reported to the owner in one interval.
fn reported(node: &NodeLimits) -> HashSet<u128> {
    let all = node.unreported(false, |_| Some(2));
    let rounds = all.iter().filter_map(|(_, unreported)| node.report(unreported, 1));
    rounds.flat_map(|round| round.ids).collect()
}

// The time stands still: a demand counts for a while only.
#[tokio::test(start_paused = true)]
async fn each_interval_has_the_limits_of_all_tenants() {
    let node = NodeLimits::new(false);
    node.begin_round(3);
    with_clients(&node, "busy", 9_000);
    let quiet = node.rate("quiet", ("all", "requests"), "", RATE);
    let count = node.count("quiet", "streams", 3);
    for _ in 0..6 {
        let _ = quiet.take(1, 0, 1, node.now());
        let _ = count.take(node.now());
        let reported = reported(&node);
        assert!(reported.contains(&quiet.id) && reported.contains(&count.id));
        assert_eq!(reported.len(), 9_002);
    }
}

#[tokio::test(start_paused = true)]
async fn beyond_the_bound_tenants_have_equal_parts_and_those_of_clients_come_last() {
    let node = NodeLimits::new(false);
    node.begin_round(3);
    for tenant in ["a", "b", "c"] {
        with_clients(&node, tenant, ENTRIES_OF_TENANT_MAX);
    }
    with_clients(&node, "quiet", 50);
    let own = node.rate("a", ("all", "requests"), "", RATE);
    let _ = own.take(1, 0, 1, node.now());
    let (first, second) = (reported(&node), reported(&node));
    // Those that have a share keep it.
    assert_eq!(second, first);
    assert!(first.len() <= ROUND_MAX && first.len() > ROUND_MAX - 4, "{}", first.len());
    let of = |tenant: &str, ids: &HashSet<u128>| {
        let name = |client| limit_id(tenant, "each", &format!("key:{client}"));
        (0..ENTRIES_OF_TENANT_MAX).map(name).filter(|id| ids.contains(id)).count()
    };
    assert!(first.contains(&own.id));
    assert_eq!(of("quiet", &first), 50);
    let part = (ROUND_MAX - 51) / 3;
    for tenant in ["a", "b", "c"] {
        assert!(of(tenant, &first).abs_diff(part) <= 1, "{tenant}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_to_be_created_counts_until_the_node_has_it() {
    let node = NodeLimits::new(true);
    let limits = ClusterLimits { sessions_max: Some(1), ..ClusterLimits::default() };
    node.limit_tenants([("acme".into(), Arc::new(limits))]);
    let sessions = node.sessions("acme").unwrap();
    let pending = sessions.take_pending(node.now()).unwrap().unwrap();
    // Intervals pass while its record is written.
    (0..3).for_each(|_| node.set_sessions(|| vec![("acme".into(), 0)]));
    assert!(sessions.take_pending(node.now()).unwrap().is_err());
    drop(pending);
    node.set_sessions(|| vec![("acme".into(), 1)]);
    assert!(sessions.take_pending(node.now()).unwrap().is_err());
    node.set_sessions(|| vec![("acme".into(), 0)]);
    assert!(sessions.take_pending(node.now()).unwrap().is_ok());
}
