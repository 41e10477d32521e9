//! Metrics of Redis connections and commands.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};
use telemetry::register;

/// Upper bounds in seconds: from 0.2 ms to the default timeout.
const BUCKETS: [f64; 11] = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];

/// Connections to primaries. A broken one counts until the node detects the failure.
pub(crate) static CONNECTIONS: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge("roundhouse_redis_connections", "Working connections to Redis primaries.")
});

/// Failed attempts to connect.
pub(crate) static CONNECT_FAILURES: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_redis_connect_failures_total",
        "Failed attempts to connect to Redis.",
    )
});

/// Connections that broke, or that were closed because an answer was late.
pub(crate) static CONNECTIONS_BROKEN: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_redis_connections_broken_total",
        "Connections to Redis that broke, or that were closed because an answer timed out.",
    )
});

/// Whether every known primary has a connection.
static UP: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_redis_up",
        "1 while this node has a working connection to every known Redis primary, else 0.",
    )
});

static COMMANDS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_redis_commands_total",
        "Commands to Redis, by operation and final outcome.",
        &["operation", "outcome"],
    )
});

/// The counter of every combination of labels, resolved once.
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
            "Time from the call of an operation to its final answer, retries included.",
            &["operation"],
            BUCKETS.into(),
        )
    });
    Operation::ALL.map(|operation| vec.with_label_values(&[operation.label()]))
});

/// Retried commands by cause: `unanswered`, `script`, `moved`, `busy` or `deposed`.
pub(crate) static REPEATS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_redis_repeats_total",
        "Retried commands to Redis, by cause.",
        &["cause"],
    )
});

/// The time from one write to the last of its answers, for any number of commands.
static ROUND_TRIPS: LazyLock<Histogram> = LazyLock::new(|| {
    register::histogram(
        "roundhouse_redis_round_trip_seconds",
        "Time from one write to Redis until its last answer.",
        BUCKETS.into(),
    )
});

pub(crate) fn observe_round_trip(took: Duration) {
    ROUND_TRIPS.observe(took.as_secs_f64());
}

/// Sets whether every primary has a connection.
pub(crate) fn set_up(up: bool) {
    UP.set(up.into());
}

/// Counts a finished command and observes its duration.
pub(crate) fn count_command(operation: Operation, outcome: Outcome, took: Duration) {
    BY_KIND[operation as usize][outcome as usize].inc();
    SECONDS[operation as usize].observe(took.as_secs_f64());
}

/// Registers every metric with the value zero, so that a rate includes the first event.
pub(crate) fn register_all() {
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

/// The store operation that a command belongs to.
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
    Revoke,
    /// Any read.
    Read,
}

impl Operation {
    const ALL: [Self; 12] = [
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
        Self::Revoke,
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
            Self::Revoke => "revoke",
            Self::Read => "read",
        }
    }
}

/// The final outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Redis answered.
    Answered,
    /// Redis refused the command: out of memory, read-only, or no permission.
    Refused,
    /// The command timed out.
    Late,
    /// There was no connection, or each attempt failed.
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
