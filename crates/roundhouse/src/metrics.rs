//! Metrics of the program itself. Its parts have their own in their crates.

use std::sync::LazyLock;

use prometheus::IntGaugeVec;
use telemetry::register;

static BUILD: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_build_info",
        "Always 1; the label has the version of the program.",
        &["version"],
    )
});

/// Sets the metrics that do not change.
pub(crate) fn show() {
    BUILD.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
}
