//! What is counted of the cluster.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{Gauge, IntCounter, IntGauge};
use telemetry::register;

/// How old the lease is.
static LEASE_AGE: LazyLock<Gauge> = LazyLock::new(|| {
    register::float_gauge(
        "roundhouse_lease_age_seconds",
        "Time since the last lease renewal that succeeded was sent, when last looked at.",
    )
});

/// How old it may become.
static LEASE_SPAN: LazyLock<Gauge> = LazyLock::new(|| {
    register::float_gauge(
        "roundhouse_lease_span_seconds",
        "How old the lease may become before the node stops acting.",
    )
});

/// Renewals that failed.
pub(crate) static RENEWALS_FAILED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_lease_renewals_failed_total",
        "Lease renewals that the store did not do.",
    )
});

/// How often the lease was not there any more.
pub(crate) static LEASES_LOST: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_leases_lost_total",
        "How often this node's lease lapsed or was gone.",
    )
});

/// How often a session was claimed.
pub(crate) static CLAIMS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_claims_total",
        "How often this node claimed a session of a lost or parted owner.",
    )
});

/// How often the store had another primary.
pub(crate) static FAILOVERS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_store_failovers_total",
        "How often the store was seen with a new primary.",
    )
});

/// Is the stabilisation after a failover of the store not over?
pub(crate) static STABILISING: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_stabilising",
        "1 during the stabilisation after a failover of the store, else 0.",
    )
});

/// Nodes that hold a lease.
pub(crate) static NODES: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge("roundhouse_nodes", "Nodes that hold a lease, as this node knows.")
});

/// Links to peers.
pub(crate) static LINKS: LazyLock<IntGauge> =
    LazyLock::new(|| register::gauge("roundhouse_peer_links", "Established links to other nodes."));

/// Links that broke.
pub(crate) static LINKS_BROKEN: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_peer_links_broken_total",
        "Established links to other nodes that broke.",
    )
});

/// Nodes this node marked dead.
pub(crate) static MARKED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_nodes_marked_dead_total", "Nodes that this node marked dead.")
});

/// Notes how old the lease is.
pub(crate) fn set_lease_age(age: Duration) {
    LEASE_AGE.set(age.as_secs_f64());
}

/// Shows every metric from the start, so that a rate is right from the first event on.
pub(crate) fn show(lease_span: Duration) {
    LEASE_SPAN.set(lease_span.as_secs_f64());
    LazyLock::force(&LEASE_AGE);
    for gauge in [&NODES, &LINKS, &STABILISING] {
        LazyLock::force(gauge);
    }
    let counters = [&RENEWALS_FAILED, &LEASES_LOST, &LINKS_BROKEN, &MARKED];
    for counter in counters.into_iter().chain([&CLAIMS, &FAILOVERS]) {
        LazyLock::force(counter);
    }
    peering::metrics::show();
}
