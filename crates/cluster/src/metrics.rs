//! The metrics of the cluster.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{Gauge, IntCounter, IntGauge};
use telemetry::register;

/// The age of the lease.
static LEASE_AGE: LazyLock<Gauge> = LazyLock::new(|| {
    register::float_gauge(
        "roundhouse_lease_age_seconds",
        "Time since the last successful lease renewal was sent.",
    )
});

/// The age at which the node stops acting.
static LEASE_SPAN: LazyLock<Gauge> = LazyLock::new(|| {
    register::float_gauge(
        "roundhouse_lease_span_seconds",
        "Age of the lease at which the node stops acting.",
    )
});

/// Lease renewals that failed.
pub(crate) static RENEWALS_FAILED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_lease_renewals_failed_total", "Lease renewals that failed.")
});

/// How often the lease lapsed or was missing.
pub(crate) static LEASES_LOST: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_leases_lost_total",
        "Number of times that this node's lease lapsed or was missing from the store.",
    )
});

/// Sessions that this node claimed.
pub(crate) static CLAIMS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_claims_total",
        "Sessions that this node claimed from an owner that was lost or had left.",
    )
});

/// Revocations that this node knows.
pub(crate) static REVOCATIONS: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_revocations",
        "Clients whose revocation this node knows, those that were taken back included.",
    )
});

/// Failovers of the store.
pub(crate) static FAILOVERS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_store_failovers_total",
        "Failovers of the store that this node observed.",
    )
});

/// Whether a stabilisation is under way.
pub(crate) static STABILISING: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_stabilising",
        "1 during the stabilisation after a failover of the store, else 0.",
    )
});

/// Nodes that hold a lease.
pub(crate) static NODES: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge("roundhouse_nodes", "Nodes that hold a lease, as this node last read them.")
});

/// Established links to peers.
pub(crate) static LINKS: LazyLock<IntGauge> =
    LazyLock::new(|| register::gauge("roundhouse_peer_links", "Established links to other nodes."));

/// Established links that broke.
pub(crate) static LINKS_BROKEN: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_peer_links_broken_total",
        "Established links to other nodes that broke.",
    )
});

/// Nodes that this node marked dead.
pub(crate) static MARKED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_nodes_marked_dead_total", "Nodes that this node marked dead.")
});

/// Sets the age of the lease.
pub(crate) fn set_lease_age(age: Duration) {
    LEASE_AGE.set(age.as_secs_f64());
}

/// Registers every metric at the start, so that a rate includes the first event.
pub(crate) fn show(lease_span: Duration) {
    LEASE_SPAN.set(lease_span.as_secs_f64());
    LazyLock::force(&LEASE_AGE);
    for gauge in [&NODES, &LINKS, &STABILISING, &REVOCATIONS] {
        LazyLock::force(gauge);
    }
    let counters = [&RENEWALS_FAILED, &LEASES_LOST, &LINKS_BROKEN, &MARKED];
    for counter in counters.into_iter().chain([&CLAIMS, &FAILOVERS]) {
        LazyLock::force(counter);
    }
    peering::metrics::show();
}
