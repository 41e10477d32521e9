//! Metrics of requests to issuers.

use std::sync::LazyLock;

use prometheus::IntCounterVec;
use telemetry::register;

static FETCHES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_issuer_requests_total",
        "Requests to issuers of tokens: for their keys, and whether a token counts.",
        &["kind", "outcome"],
    )
});

/// Registers the metrics, so that each is there before it counts.
pub fn register_metrics() {
    for kind in ["keys", "introspection"] {
        for outcome in ["ok", "failed"] {
            FETCHES.with_label_values(&[kind, outcome]);
        }
    }
}

pub(crate) fn count_fetch(kind: &str, is_ok: bool) {
    FETCHES.with_label_values(&[kind, if is_ok { "ok" } else { "failed" }]).inc();
}
