//! What is counted about Redis.

use std::sync::LazyLock;
use std::time::Duration;

use prometheus::{
    Histogram, IntCounter, IntCounterVec, IntGauge, register_histogram, register_int_counter,
    register_int_counter_vec, register_int_gauge,
};

macro_rules! metric {
    ($register:ident, $($argument:expr),+ $(,)?) => {
        // Two metrics of one name are a mistake of ours, and any test meets it.
        LazyLock::new(|| $register!($($argument),+).expect("each metric is registered once"))
    };
}

/// Connections to primaries that work, as far as anybody has noticed.
pub(crate) static CONNECTIONS: LazyLock<IntGauge> = metric!(
    register_int_gauge,
    "roundhouse_redis_connections",
    "Connections to primaries of Redis that work.",
);

/// Attempts to connect that failed.
pub(crate) static CONNECT_FAILURES: LazyLock<IntCounter> = metric!(
    register_int_counter,
    "roundhouse_redis_connect_failures_total",
    "Attempts to connect to Redis that failed.",
);

/// Connections that broke, or whose answers came too late.
pub(crate) static CONNECTIONS_BROKEN: LazyLock<IntCounter> = metric!(
    register_int_counter,
    "roundhouse_redis_connections_broken_total",
    "Connections to Redis that broke or answered too late.",
);

/// Commands by what came of them at last: `answered`, `refused` or `unanswered`.
pub(crate) static COMMANDS: LazyLock<IntCounterVec> = metric!(
    register_int_counter_vec,
    "roundhouse_redis_commands_total",
    "Commands to Redis by what came of them at last.",
    &["outcome"],
);

/// Commands that were sent once more, by why: `unanswered`, `script`, `moved`, `busy` or
/// `deposed`.
pub(crate) static REPEATS: LazyLock<IntCounterVec> = metric!(
    register_int_counter_vec,
    "roundhouse_redis_repeats_total",
    "Commands to Redis that were sent once more, by cause.",
    &["cause"],
);

/// How long a write waited for its answers, however many commands it held.
static ROUND_TRIPS: LazyLock<Histogram> = metric!(
    register_histogram,
    "roundhouse_redis_round_trip_seconds",
    "Time from a write to Redis to the last of its answers.",
    vec![0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0],
);

pub(crate) fn round_trip(took: Duration) {
    ROUND_TRIPS.observe(took.as_secs_f64());
}
