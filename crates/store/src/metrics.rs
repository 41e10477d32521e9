//! What is counted about Redis.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};
use telemetry::register;

/// From a fifth of a millisecond to what counts as unavailable.
const BUCKETS: [f64; 11] = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];

/// Connections to primaries that work. A broken one counts until the node notices it.
pub(crate) static CONNECTIONS: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge("roundhouse_redis_connections", "Connections to primaries of Redis that work.")
});

/// Attempts to connect that failed.
pub(crate) static CONNECT_FAILURES: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_redis_connect_failures_total",
        "Attempts to connect to Redis that failed.",
    )
});

/// Connections that broke, or whose answers came too late.
pub(crate) static CONNECTIONS_BROKEN: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_redis_connections_broken_total",
        "Connections to Redis that broke or answered too late.",
    )
});

/// Is there a way to every primary that is known?
static UP: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_redis_up",
        "1 while every primary of Redis that this node knows has a connection that works, else 0.",
    )
});

static COMMANDS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_redis_commands_total",
        "Commands to Redis, by operation and by their final outcome.",
        &["operation", "outcome"],
    )
});

/// Every combination, resolved once: counting a command is one addition.
static BY_KIND: LazyLock<[[IntCounter; 4]; Operation::ALL.len()]> = LazyLock::new(|| {
    Operation::ALL.map(|operation| {
        Outcome::ALL
            .map(|outcome| COMMANDS.with_label_values(&[operation.label(), outcome.label()]))
    })
});

static SECONDS: LazyLock<[Histogram; Operation::ALL.len()]> = LazyLock::new(|| {
    let vec: LazyLock<HistogramVec> = LazyLock::new(|| {
        register::histograms(
            "roundhouse_redis_command_seconds",
            "Time from the wish for a command to its final answer, repetitions included.",
            &["operation"],
            BUCKETS.into(),
        )
    });
    Operation::ALL.map(|operation| vec.with_label_values(&[operation.label()]))
});

/// Commands that were sent once more, by why: `unanswered`, `script`, `moved`, `busy` or
/// `deposed`.
pub(crate) static REPEATS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_redis_repeats_total",
        "Commands to Redis that were sent once more, by cause.",
        &["cause"],
    )
});

/// How long a write waited for its answers, however many commands it held.
static ROUND_TRIPS: LazyLock<Histogram> = LazyLock::new(|| {
    register::histogram(
        "roundhouse_redis_round_trip_seconds",
        "Time from a write to Redis to the last of its answers.",
        BUCKETS.into(),
    )
});

pub(crate) fn round_trip(took: Duration) {
    ROUND_TRIPS.observe(took.as_secs_f64());
}

/// Notes whether there is a way to every primary.
pub(crate) fn is_up(up: bool) {
    UP.set(up.into());
}

/// Counts a command that is over, and how long it took.
pub(crate) fn came(operation: Operation, outcome: Outcome, took: Duration) {
    BY_KIND[operation as usize][outcome as usize].inc();
    SECONDS[operation as usize].observe(took.as_secs_f64());
}

/// Shows every metric from the start, so that a rate is right from the first event on.
pub(crate) fn show() {
    LazyLock::force(&UP);
    LazyLock::force(&CONNECTIONS);
    LazyLock::force(&CONNECT_FAILURES);
    LazyLock::force(&CONNECTIONS_BROKEN);
    LazyLock::force(&BY_KIND);
    LazyLock::force(&SECONDS);
    LazyLock::force(&ROUND_TRIPS);
    for cause in ["unanswered", "script", "moved", "busy", "deposed"] {
        REPEATS.with_label_values(&[cause]);
    }
}

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Claim,
    Append,
    Reassert,
    Save,
    Release,
    End,
    Renew,
    Leave,
    MarkDead,
    /// To read anything else.
    Read,
}

impl Operation {
    const ALL: [Self; 11] = [
        Self::Create,
        Self::Claim,
        Self::Append,
        Self::Reassert,
        Self::Save,
        Self::Release,
        Self::End,
        Self::Renew,
        Self::Leave,
        Self::MarkDead,
        Self::Read,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Claim => "claim",
            Self::Append => "append",
            Self::Reassert => "reassert",
            Self::Save => "save",
            Self::Release => "release",
            Self::End => "end",
            Self::Renew => "renew",
            Self::Leave => "leave",
            Self::MarkDead => "mark_dead",
            Self::Read => "read",
        }
    }
}

/// What came of a command at last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Redis answered.
    Answered,
    /// It answered that it will not: full, read-only, not permitted.
    Refused,
    /// Time was up.
    Late,
    /// There was no way to it, or the connection broke too often.
    Unreachable,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Answered, Self::Refused, Self::Late, Self::Unreachable];

    fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Late => "late",
            Self::Unreachable => "unreachable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_lies_where_it_is_looked_for() {
        assert!(Operation::ALL.iter().enumerate().all(|(place, kind)| *kind as usize == place));
        assert!(Outcome::ALL.iter().enumerate().all(|(place, kind)| *kind as usize == place));
    }
}
