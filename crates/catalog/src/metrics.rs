//! Metrics of catalogs.

use std::sync::LazyLock;

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use telemetry::register;

use crate::LeftOut;

/// Servers that sessions with a catalog do not have.
pub(crate) static UNAVAILABLE: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_catalog_servers_unavailable",
        "Servers of catalogs that open sessions lack, each counted for each session.",
    )
});

/// Ends and failed starts of servers of catalogs.
pub(crate) static FAILURES: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_catalog_server_failures_total",
        "Servers of catalogs that ended or failed to start, while the session kept the others.",
    )
});

/// Entries of lists that are not offered; `reason` is one of [`LeftOut`].
pub(crate) static LEFT_OUT: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_catalog_entries_left_out_total",
        "Entries of servers' lists that catalogs do not offer, by reason.",
        &["reason"],
    )
});

/// Lists that a server did not send.
pub(crate) static LISTS_FAILED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_catalog_lists_failed_total",
        "Lists that a server of a catalog did not send in time, or not as the specification has it.",
    )
});

/// Messages that were dropped.
pub(crate) static STRAY: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_catalog_stray_messages_total",
        "Messages of servers of catalogs that belong to no request of the session, and were dropped.",
    )
});

/// Registers every metric with the value zero, so that a rate includes the first event.
pub fn register_all() {
    LazyLock::force(&UNAVAILABLE);
    for counter in [&FAILURES, &LISTS_FAILED, &STRAY] {
        LazyLock::force(counter);
    }
    for reason in LeftOut::ALL {
        LEFT_OUT.with_label_values(&[reason.label()]);
    }
}
