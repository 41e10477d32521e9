//! Metrics of exchanges with upstream servers.

use std::sync::LazyLock;

use prometheus::{IntCounterVec, IntGauge};
use telemetry::register;

/// Exchanges that ended; `outcome` is one of [`OUTCOMES`].
static EXCHANGES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_upstream_exchanges_total",
        "HTTP exchanges with upstream servers, by outcome.",
        &["outcome"],
    )
});

/// Exchanges that have not ended.
pub(crate) static OPEN: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_upstream_exchanges_open",
        "HTTP exchanges with upstream servers that have not ended, streams included.",
    )
});

/// An answer of the server, with any content.
pub(crate) const ANSWERED: &str = "answered";
/// A status below 500 that is an error.
pub(crate) const REFUSED: &str = "refused";
/// A status from 500 on.
pub(crate) const FAILED: &str = "failed";

const OUTCOMES: [&str; 11] = [
    ANSWERED,
    REFUSED,
    FAILED,
    "not_permitted",
    "unreachable",
    "held_back",
    "busy",
    "lost",
    "timed_out",
    "invalid",
    "redirected",
];

pub(crate) fn count(outcome: &'static str) {
    EXCHANGES.with_label_values(&[outcome]).inc();
}

/// Registers every metric with the value zero, so that a rate includes the first event.
pub fn register_all() {
    LazyLock::force(&OPEN);
    for outcome in OUTCOMES {
        EXCHANGES.with_label_values(&[outcome]);
    }
}

/// An exchange that has not ended.
pub(crate) struct Open;

impl Open {
    pub(crate) fn new() -> Self {
        OPEN.inc();
        Self
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.dec();
    }
}
