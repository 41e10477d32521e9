//! The metrics of connections and calls between nodes.

use std::sync::LazyLock;

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use telemetry::register;

use crate::CallError;

/// Refused connections: a wrong secret, a TLS failure, or a handshake that was too slow at the
/// bound.
pub(crate) static LINKS_REFUSED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_peer_links_refused_total",
        "Connections refused because the peer did not authenticate itself.",
    )
});

/// Calls to other nodes in progress.
pub(crate) static CALLS_OPEN: LazyLock<IntGauge> =
    LazyLock::new(|| register::gauge("roundhouse_peer_calls", "Calls to other nodes in progress."));

static CALLS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_peer_calls_total",
        "Calls to other nodes, by outcome.",
        &["outcome"],
    )
});

static OUTCOMES: LazyLock<[IntCounter; 5]> = LazyLock::new(|| {
    ["ended", "not_started", "lost", "cancelled", "too_large"]
        .map(|name| CALLS.with_label_values(&[name]))
});

/// The outcome of a call.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    Ended,
    NotStarted,
    Lost,
    Cancelled,
    TooLarge,
}

impl From<CallError> for Outcome {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotStarted => Self::NotStarted,
            CallError::Lost => Self::Lost,
            CallError::TooLarge { .. } => Self::TooLarge,
        }
    }
}

impl From<Result<(), CallError>> for Outcome {
    fn from(result: Result<(), CallError>) -> Self {
        result.map_or_else(Self::from, |()| Self::Ended)
    }
}

/// Counts a call that has ended.
pub(crate) fn count_outcome(outcome: Outcome) {
    OUTCOMES[outcome as usize].inc();
}

/// Registers every metric at the start, so that a rate includes the first event.
pub fn show() {
    LazyLock::force(&CALLS_OPEN);
    LazyLock::force(&LINKS_REFUSED);
    LazyLock::force(&OUTCOMES);
}
