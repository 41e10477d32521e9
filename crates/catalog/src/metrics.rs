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

/// Definitions that are not the approved ones.
static DIFFERENCES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_catalog_unpinned_definitions_total",
        "Definitions of tools, prompts and instructions that are not the pinned ones, each once.",
        &["pinned", "refused"],
    )
});

/// Requests for tools and prompts whose definitions are not the approved ones.
pub(crate) static WITHHELD: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_catalog_unpinned_requests_refused_total",
        "Requests for tools and prompts that were refused because their definitions are not pinned.",
    )
});

/// Counts a definition that is not the approved one. `is_pinned`: another definition is approved.
pub(crate) fn count_difference(is_pinned: bool, is_refused: bool) {
    DIFFERENCES.with_label_values(&[label(is_pinned), label(is_refused)]).inc();
}

fn label(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// Registers every metric with the value zero, so that a rate includes the first event.
pub fn register_all() {
    LazyLock::force(&UNAVAILABLE);
    for counter in [&FAILURES, &LISTS_FAILED, &STRAY, &WITHHELD] {
        LazyLock::force(counter);
    }
    for [pinned, refused] in [[false, false], [false, true], [true, false], [true, true]] {
        DIFFERENCES.with_label_values(&[label(pinned), label(refused)]);
    }
    for reason in LeftOut::ALL {
        LEFT_OUT.with_label_values(&[reason.label()]);
    }
}
