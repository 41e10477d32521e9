//! Metrics of the program itself. Its parts have their own in their crates.

use std::sync::LazyLock;

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};
use telemetry::register;

static BUILD: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_build_info",
        "Always 1; the label has the version of the program.",
        &["version"],
    )
});

static RELOADS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_settings_reloads_total",
        "Attempts to apply a changed settings file, by outcome.",
        &["outcome"],
    )
});

/// Changed files that were applied.
pub(crate) static RELOADS_APPLIED: LazyLock<IntCounter> =
    LazyLock::new(|| RELOADS.with_label_values(&["applied"]));

/// Changed files that had a problem, of which nothing was applied.
pub(crate) static RELOADS_REFUSED: LazyLock<IntCounter> =
    LazyLock::new(|| RELOADS.with_label_values(&["refused"]));

/// Sets the metrics that do not change, and shows the others before they have counted anything.
pub(crate) fn show() {
    LazyLock::force(&RELOADS_APPLIED);
    LazyLock::force(&RELOADS_REFUSED);
    BUILD.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
}
