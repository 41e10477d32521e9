//! What is said of the program itself. What its parts count is in their own crates.

use std::sync::LazyLock;

use prometheus::IntGaugeVec;
use telemetry::register;

static BUILD: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_build_info",
        "Always 1; which version this is stands in the label.",
        &["version"],
    )
});

/// Shows what does not change.
pub(crate) fn show() {
    BUILD.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
}
