//! The metrics of sessions.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use conversation::{Cause, Fact, ResumeOutcome};
use prometheus::{
    GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    exponential_buckets,
};
use telemetry::{OTHER_TENANTS, TenantLabels, register};

use crate::SessionBytes;

/// How long sessions last, by the names of OpenTelemetry's conventions.
pub(crate) const SESSION_SECONDS: &str = "mcp_server_session_duration_seconds";

/// Sessions on this node.
pub(crate) static SESSIONS: LazyLock<IntGauge> =
    LazyLock::new(|| register::gauge("roundhouse_sessions", "Sessions on this node."));

/// Sessions created on this node.
pub(crate) static SESSIONS_OPENED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_sessions_opened_total", "Sessions created on this node.")
});

static SESSIONS_ENDED: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_sessions_ended_total",
        "Sessions that ended on this node.",
        &["cause"],
    )
});

/// Sessions refused at a bound.
pub(crate) static SESSIONS_REFUSED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_sessions_refused_total",
        "Sessions refused because the node or the tenant has no free slot.",
    )
});

/// Sessions that ended for newer ones before their client had completed the handshake.
pub(crate) static UNCONFIRMED_EVICTED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_sessions_evicted_total",
        "Sessions without `initialized` that ended because newer ones needed their place.",
    )
});

/// Requests of clients that have no final response yet.
pub(crate) static EXCHANGES: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_requests_in_flight",
        "Requests of clients without a final response.",
    )
});

/// Open sinks.
pub(crate) static SINKS_OPEN: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_sinks",
        "Connections of clients that wait for an answer or have an open stream.",
    )
});

/// Connections that were cut because their client was too slow.
pub(crate) static SINKS_OVERFLOWED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_sinks_overflowed_total",
        "Connections cut because their client read too slowly.",
    )
});

/// The bytes that the sessions of this node keep.
pub(crate) static SESSION_BYTES: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_session_bytes",
        "Bytes that the sessions of this node keep for clients and servers.",
    )
});

/// The bytes that the sessions of each tenant keep.
static TENANT_SESSION_BYTES: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_tenant_session_bytes",
        "Bytes that the sessions of a tenant keep on this node.",
        &["tenant"],
    )
});

/// The bytes that the sessions of each tenant keep in the store.
static TENANT_STORED_BYTES: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_tenant_stored_bytes",
        "Bytes that the sessions of a tenant keep in Redis, those that fell asleep at this node included.",
        &["tenant"],
    )
});

/// The sessions of each tenant.
static TENANT_SESSIONS: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_tenant_sessions",
        "Sessions of a tenant on this node.",
        &["tenant"],
    )
});

/// The parts of the limits of the cluster that are used here.
static TENANT_LIMIT_USED: LazyLock<GaugeVec> = LazyLock::new(|| {
    register::float_gauges(
        "roundhouse_tenant_limit_used_ratio",
        "Part of a tenant's limit of the cluster that is used at this node, by kind of limit.",
        &["tenant", "limit"],
    )
});

/// Shows how much of their limits tenants use: each with a label of its own; of all others the most.
pub(crate) fn show_limits(labels: &TenantLabels, used: Vec<(Arc<str>, &'static str, f64)>) {
    let mut most: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    for (tenant, kind, used) in &used {
        let most = most.entry((labels.label(tenant), kind)).or_default();
        *most = most.max(*used);
    }
    // What is not used any more is not shown.
    TENANT_LIMIT_USED.reset();
    for ((label, kind), used) in most {
        TENANT_LIMIT_USED.with_label_values(&[label, kind]).set(used);
    }
}

/// Shows what the tenants use: each with a label of its own, and all others together.
pub(crate) fn show_tenants(
    labels: &TenantLabels,
    bytes: &SessionBytes,
    sessions: &[(Arc<str>, usize)],
) {
    SESSION_BYTES.set(bytes.budget().used() as i64);
    for (gauges, budget) in
        [(&TENANT_SESSION_BYTES, bytes.budget()), (&TENANT_STORED_BYTES, bytes.in_store())]
    {
        let shares = budget.shares();
        let used = shares.iter().map(|share| (&**share.tenant(), share.used()));
        set(gauges, labels.sums(used));
    }
    let sessions = sessions.iter().map(|(tenant, sessions)| (&**tenant, *sessions));
    set(&TENANT_SESSIONS, labels.sums(sessions));
}

fn set(gauges: &IntGaugeVec, values: BTreeMap<&str, usize>) {
    // The others may all have gone since the last time.
    if !values.contains_key(OTHER_TENANTS) {
        let _ = gauges.remove_label_values(&[OTHER_TENANTS]);
    }
    for (label, value) in values {
        gauges.with_label_values(&[label]).set(value as i64);
    }
}

/// Rounds in which a tenant had to release bytes.
pub(crate) static RELIEFS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_session_bytes_reliefs_total",
        "Rounds in which the sessions of a tenant had to release bytes.",
    )
});

/// Posts and streams refused because a mailbox was full.
pub(crate) static BUSY: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_busy_total",
        "Posts and streams refused because the mailbox of the session was full.",
    )
});

/// Entries that the store acknowledged.
pub(crate) static LOG_ENTRIES: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_log_entries_total", "Log entries that the store acknowledged.")
});

/// Writes to the log that are repeated.
pub(crate) static LOG_RETRIES: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_log_retries_total",
        "Writes to the log that failed and were repeated.",
    )
});

/// Sessions that their own node claimed again.
pub(crate) static RECLAIMED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_sessions_reclaimed_total",
        "Sessions that their own node claimed again after its lease had lapsed.",
    )
});

/// Sessions that were released.
pub(crate) static RELEASED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_sessions_released_total",
        "Sessions released in the store, asleep or handed over; the next request takes them over.",
    )
});

/// Sessions that were handed over with requests in flight.
pub(crate) static HANDOVERS_FORCED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_handovers_forced_total",
        "Sessions handed over with requests in flight because the time to drain was over.",
    )
});

/// Held requests.
pub(crate) static HELD: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_requests_held",
        "Requests held until their session can be reached or created.",
    )
});

static HOLDS: LazyLock<[IntCounter; 3]> = LazyLock::new(|| {
    let help = "Requests that were to be held, by outcome.";
    let vec = register::counters("roundhouse_holds_total", help, &["outcome"]);
    ["reached", "expired", "refused"].map(|outcome| vec.with_label_values(&[outcome]))
});

/// The outcome of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The session was reached or created.
    Reached,
    /// The time to hold was over.
    Expired,
    /// The bound of held requests was reached.
    Refused,
}

/// Counts the end of a hold.
pub(crate) fn count_hold(hold: Hold) {
    HOLDS[hold as usize].inc();
}

/// Streams that continued at another owner.
pub(crate) static STREAMS_REATTACHED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_streams_reattached_total",
        "Streams that continued at another owner on the same connection.",
    )
});

/// The label is looked up once, not per take-over.
static TAKEOVERS: LazyLock<[IntCounter; 4]> = LazyLock::new(|| {
    let help = "Sessions that this node took over, by cause.";
    let vec = register::counters("roundhouse_takeovers_total", help, &["cause"]);
    ["released", "lapsed", "dead", "own"].map(|cause| vec.with_label_values(&[cause]))
});

static TAKEOVERS_FAILED: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "Take-overs that failed; their requests are held and retried.";
    register::counters("roundhouse_takeovers_failed_total", help, &["reason"])
});

/// The duration of take-overs.
pub(crate) static TAKEOVER_SECONDS: LazyLock<Histogram> = LazyLock::new(|| {
    let buckets = exponential_buckets(0.001, 3.0, 10).unwrap_or_default();
    register::histogram(
        "roundhouse_takeover_seconds",
        "Time to claim a session and to read its record and log.",
        buckets,
    )
});

/// Counts a take-over.
pub(crate) fn count_takeover(cause: cluster::Cause) {
    let index = match cause {
        cluster::Cause::Released => 0,
        cluster::Cause::Lapsed => 1,
        cluster::Cause::Dead => 2,
        cluster::Cause::Own => 3,
    };
    TAKEOVERS[index].inc();
}

/// The reason why a take-over failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another node has claimed the session.
    Taken,
    /// The store or the node's lease does not permit it now.
    NotNow,
    /// The node has no free slot, or stops.
    NoRoom,
    /// This version cannot read the record or the log.
    Unreadable,
}

/// Counts a failed take-over.
pub(crate) fn count_failed_takeover(failure: Failure) {
    let reason = match failure {
        Failure::Taken => "taken",
        Failure::NotNow => "not_now",
        Failure::NoRoom => "no_room",
        Failure::Unreadable => "unreadable",
    };
    TAKEOVERS_FAILED.with_label_values(&[reason]).inc();
}

static STRAY: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_stray_messages_total",
        "Messages of servers that matched no request or stream.",
    )
});

static DROPPED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_dropped_messages_total", "Messages dropped at a bound.")
});

static RESUMES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_resumes_total",
        "Streams that clients resumed, by outcome.",
        &["outcome"],
    )
});

/// Requests of clients, by how they ended. The label is looked up once, not per request.
static REQUESTS: LazyLock<[Histogram; 2]> = LazyLock::new(|| {
    // From one millisecond to about nine minutes.
    let buckets = exponential_buckets(0.001, 3.0, 13).unwrap_or_default();
    let vec: HistogramVec = register::histograms(
        "roundhouse_request_seconds",
        "Time from a client's request to its final response.",
        &["outcome"],
        buckets,
    );
    [vec.with_label_values(&["error"]), vec.with_label_values(&["result"])]
});

/// Calls of peers that were accepted.
pub(crate) static SERVED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_calls_served_total",
        "Posts, streams and deletions accepted from other nodes for sessions of this one.",
    )
});

/// Calls sent through a third node.
pub(crate) static RELAYS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_calls_sent_by_relay_total",
        "Posts, streams and deletions sent through a third node, for lack of a link to the owner.",
    )
});

/// Calls relayed for other nodes.
pub(crate) static RELAYED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_calls_relayed_total",
        "Posts, streams and deletions relayed between two nodes without a link.",
    )
});

/// Limits that this node owns.
pub(crate) static LIMITS_OWNED: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_limits_owned",
        "Limits of the whole cluster that this node divides among the nodes.",
    )
});

/// Limits in use at this node.
pub(crate) static LIMITS_USED: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_limits_used",
        "Limits of the whole cluster that requests at this node have asked for lately.",
    )
});

/// Reports of limits to peers.
pub(crate) static LIMIT_REPORTS: LazyLock<[IntCounter; 2]> = LazyLock::new(|| {
    let reports = register::counters(
        "roundhouse_limit_reports_total",
        "Messages to other nodes that asked for shares of limits, by outcome.",
        &["outcome"],
    );
    ["answered", "unanswered"].map(|outcome| reports.with_label_values(&[outcome]))
});

/// The label is looked up once, not per call.
static HOPS: LazyLock<[IntCounter; 4]> = LazyLock::new(|| {
    let help = "Posts, streams and deletions forwarded to other nodes.";
    let vec = register::counters("roundhouse_calls_forwarded_total", help, &["outcome"]);
    ["answered", "not_started", "lost", "too_large"]
        .map(|outcome| vec.with_label_values(&[outcome]))
});

/// The outcome of a call to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// The owner answered, at least in part.
    Answered,
    /// The peer did not start the call; the owner is located again.
    NotStarted,
    /// The call was lost, before the reply or in the middle of a stream.
    Lost,
    /// The call or a reply exceeds `cluster.message_bytes_max`.
    TooLarge,
}

/// Counts a call to another node. A stream that breaks off is counted twice: as answered and as
/// lost.
pub(crate) fn count_hop(hop: Hop) {
    HOPS[hop as usize].inc();
}

/// The reason why a session has ended at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The session ended by itself.
    Over(Cause),
    /// Another node owns it.
    Deposed,
    /// Its record could not be created in the store.
    Unrecorded,
    /// Its actor panicked.
    Panicked,
}

impl End {
    /// The name, for labels and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Over(Cause::Deleted) => "deleted",
            Self::Over(Cause::HandshakeFailed) => "not_born",
            Self::Over(Cause::Idle) => "idle",
            Self::Over(Cause::Disconnected) => "disconnected",
            Self::Over(Cause::Stopping) => "stopping",
            Self::Over(Cause::Revoked) => "revoked",
            Self::Over(Cause::StateLost) => "state_lost",
            Self::Over(Cause::Asleep) => "asleep",
            Self::Over(Cause::Moved) => "moved",
            Self::Deposed => "deposed",
            Self::Unrecorded => "unrecorded",
            Self::Panicked => "panicked",
        }
    }
}

/// Counts the end of a session.
pub(crate) fn count_ended_session(end: End) {
    SESSIONS_ENDED.with_label_values(&[end.label()]).inc();
}

/// Counts a fact that a session reports.
pub(crate) fn count_fact(fact: &Fact) {
    match fact {
        Fact::Settled { result, millis, .. } => {
            REQUESTS[usize::from(*result)].observe(*millis as f64 / 1_000.0);
        }
        Fact::Resumed(outcome) => {
            let outcome = match outcome {
                ResumeOutcome::Replayed => "replayed",
                ResumeOutcome::Trimmed => "trimmed",
                ResumeOutcome::Finished => "finished",
                ResumeOutcome::Unknown => "unknown",
            };
            RESUMES.with_label_values(&[outcome]).inc();
        }
        Fact::Stray => STRAY.inc(),
        Fact::Dropped => DROPPED.inc(),
    }
}

/// Registers every metric at the start, so that a rate includes the first event.
pub(crate) fn show() {
    for gauge in [&SESSIONS, &EXCHANGES, &SINKS_OPEN, &HELD, &SESSION_BYTES] {
        LazyLock::force(gauge);
    }
    let counters = [&SESSIONS_OPENED, &SESSIONS_REFUSED, &SINKS_OVERFLOWED, &BUSY, &LOG_ENTRIES];
    for counter in counters.into_iter().chain([&LOG_RETRIES, &STRAY, &DROPPED, &SERVED]) {
        LazyLock::force(counter);
    }
    for counter in
        [&RECLAIMED, &RELEASED, &HANDOVERS_FORCED, &STREAMS_REATTACHED, &RELAYS, &RELAYED]
    {
        LazyLock::force(counter);
    }
    LazyLock::force(&LIMITS_OWNED);
    LazyLock::force(&LIMITS_USED);
    LazyLock::force(&LIMIT_REPORTS);
    LazyLock::force(&RELIEFS);
    LazyLock::force(&UNCONFIRMED_EVICTED);
    LazyLock::force(&TENANT_SESSION_BYTES);
    LazyLock::force(&TENANT_SESSIONS);
    LazyLock::force(&TENANT_LIMIT_USED);
    LazyLock::force(&HOLDS);
    LazyLock::force(&HOPS);
    LazyLock::force(&TAKEOVERS);
    LazyLock::force(&TAKEOVER_SECONDS);
    for reason in ["taken", "not_now", "no_room", "unreadable"] {
        TAKEOVERS_FAILED.with_label_values(&[reason]);
    }
    LazyLock::force(&REQUESTS);
    for cause in
        ["deleted", "not_born", "idle", "disconnected", "stopping", "revoked", "state_lost"]
    {
        SESSIONS_ENDED.with_label_values(&[cause]);
    }
    for cause in ["asleep", "moved", "deposed", "unrecorded", "panicked"] {
        SESSIONS_ENDED.with_label_values(&[cause]);
    }
    for outcome in ["replayed", "trimmed", "finished", "unknown"] {
        RESUMES.with_label_values(&[outcome]);
    }
}
