//! Metrics of tenants' servers.

use std::sync::LazyLock;

use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use telemetry::{TenantLabels, register};

/// Child processes that run or are being stopped.
pub(crate) static CHILDREN: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge("roundhouse_children", "Stdio servers that run or are being stopped.")
});

/// Child processes that were started.
pub(crate) static STARTS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_child_starts_total", "Stdio servers that were started.")
});

/// Child processes that a session got which had not caused their start.
pub(crate) static HANDED_OVER: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_child_handovers_total",
        "Stdio servers that were started in advance or for an earlier session, and given to a session.",
    )
});

/// Child processes that ended, and failed starts; `cause` is one of [`ExitCause`].
pub(crate) static EXITS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_child_exits_total",
        "Stdio servers that ended or failed to start, by cause.",
        &["cause"],
    )
});

static REFUSED: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_tenant_children_refused_total",
        "Stdio servers that a tenant's sessions did not get, by the bound that was reached.",
        &["tenant", "bound"],
    )
});

/// Counts a child that a session did not get, with the label of its tenant.
pub(crate) fn count_refused(tenant: &str, bound: ChildBound) {
    REFUSED.with_label_values(&[tenant, bound.label()]).inc();
}

/// Shows the counts of the tenants that have labels of their own.
pub(crate) fn show_refused(labels: &TenantLabels) {
    for label in labels.sums([]).into_keys() {
        for bound in ChildBound::ALL {
            REFUSED.with_label_values(&[label, bound.label()]);
        }
    }
}

/// Lines on stdout that are not messages.
pub(crate) static JUNK_LINES: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_child_junk_lines_total",
        "Lines on the standard output of stdio servers that are not JSON-RPC messages.",
    )
});

/// Lines on stderr that were not logged because of the rate limit.
pub(crate) static STDERR_DROPPED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_child_stderr_dropped_lines_total",
        "Lines on the standard error of stdio servers that the rate limit kept out of the log.",
    )
});

/// Processes that were killed because their guard had been killed.
pub(crate) static ORPHANS_KILLED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_child_orphans_killed_total",
        "Processes of a stdio server that were killed after its guard had been killed.",
    )
});

/// Which protections the kernel grants; `protection` is one of [`crate::sandbox::Protection`].
pub(crate) static PROTECTIONS: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_sandbox_protection",
        "1 if stdio servers can have this protection on this machine, 0 if it is refused.",
        &["protection"],
    )
});

/// Panics of native handlers.
pub(crate) static NATIVE_PANICS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_native_panics_total", "Panics of handlers that run in the node.")
});

/// Registers every metric with the value zero, so that a rate includes the first event.
pub(crate) fn register_all() {
    for counter in
        [&STARTS, &HANDED_OVER, &JUNK_LINES, &STDERR_DROPPED, &ORPHANS_KILLED, &NATIVE_PANICS]
    {
        LazyLock::force(counter);
    }
    LazyLock::force(&CHILDREN);
    upstream::register_all();
    for cause in ExitCause::ALL {
        EXITS.with_label_values(&[cause.label()]);
    }
}

/// The bound over which a session gets no child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildBound {
    /// That of the tenant on all nodes together.
    Cluster,
    /// That of the tenant on this node.
    Tenant,
    /// That of the node.
    Node,
}

impl ChildBound {
    const ALL: [Self; 3] = [Self::Cluster, Self::Tenant, Self::Node];

    fn label(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Tenant => "tenant",
            Self::Node => "node",
        }
    }

    /// The error for the client.
    pub(crate) fn error(self) -> &'static str {
        match self {
            Self::Cluster => {
                "the tenant has as many servers as it may in the cluster; try again later"
            }
            Self::Tenant => {
                "the tenant has as many servers as it may on this node; try again later"
            }
            Self::Node => "the node has reached its maximum number of servers; try again later",
        }
    }
}

/// Why a child process ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExitCause {
    /// It could not be started.
    NotStarted,
    /// It exited by itself.
    Exited,
    /// The session ended, and the process exited when its input was closed.
    Closed,
    /// The session ended, and the process exited after SIGTERM.
    Terminated,
    /// The session ended, and the process exited only after SIGKILL.
    Killed,
    /// It exceeded a bound or closed its pipes.
    Broke,
    /// It did not answer its first request in time.
    StartTimedOut,
}

impl ExitCause {
    const ALL: [Self; 7] = [
        Self::NotStarted,
        Self::Exited,
        Self::Closed,
        Self::Terminated,
        Self::Killed,
        Self::Broke,
        Self::StartTimedOut,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::Exited => "exited",
            Self::Closed => "closed",
            Self::Terminated => "terminated",
            Self::Killed => "killed",
            Self::Broke => "broke",
            Self::StartTimedOut => "start_timed_out",
        }
    }

    /// Counts an exit with this cause.
    pub(crate) fn count(self) {
        EXITS.with_label_values(&[self.label()]).inc();
    }
}
