//! What is counted about tenants' servers.

use std::sync::LazyLock;

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use telemetry::register;

/// Children that run now, or are being stopped.
pub(crate) static CHILDREN: LazyLock<IntGauge> =
    LazyLock::new(|| register::gauge("roundhouse_children", "Stdio servers that run now."));

/// Children that were started.
pub(crate) static STARTS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_child_starts_total", "Stdio servers that were started.")
});

/// Children that ended, and starts that failed; `cause` is one of [`Cause`].
pub(crate) static EXITS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_child_exits_total",
        "Stdio servers that ended, by cause.",
        &["cause"],
    )
});

/// Lines on stdout that are no messages.
pub(crate) static JUNK_LINES: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_child_junk_lines_total",
        "Lines on the standard output of stdio servers that are no messages.",
    )
});

/// Lines on stderr that were not logged, for there were too many.
pub(crate) static STDERR_DROPPED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_child_stderr_dropped_lines_total",
        "Lines on the standard error of stdio servers that were too many to log.",
    )
});

/// Processes that were killed because their guard or leader was gone before them.
pub(crate) static ORPHANS_KILLED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_child_orphans_killed_total",
        "Processes left behind by a stdio server whose guard was killed.",
    )
});

/// Panics of native handlers.
pub(crate) static NATIVE_PANICS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_native_panics_total",
        "Panics of native handlers, each answered with an error.",
    )
});

/// Shows every metric from the start, so that a rate is right from the first one.
pub(crate) fn show() {
    for counter in [&STARTS, &JUNK_LINES, &STDERR_DROPPED, &ORPHANS_KILLED, &NATIVE_PANICS] {
        LazyLock::force(counter);
    }
    LazyLock::force(&CHILDREN);
    for cause in Cause::ALL {
        EXITS.with_label_values(&[cause.label()]);
    }
}

/// Why a child ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// It could not be started.
    NotStarted,
    /// It went on its own.
    Exited,
    /// The session was over, and it went when its input was closed.
    Closed,
    /// The session was over, and it went at SIGTERM.
    Terminated,
    /// The session was over, and only SIGKILL helped.
    Killed,
    /// It broke a bound or closed its pipes.
    Broke,
}

impl Cause {
    const ALL: [Self; 6] =
        [Self::NotStarted, Self::Exited, Self::Closed, Self::Terminated, Self::Killed, Self::Broke];

    fn label(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::Exited => "exited",
            Self::Closed => "closed",
            Self::Terminated => "terminated",
            Self::Killed => "killed",
            Self::Broke => "broke",
        }
    }

    /// Counts one more of this cause.
    pub(crate) fn count(self) {
        EXITS.with_label_values(&[self.label()]).inc();
    }
}
