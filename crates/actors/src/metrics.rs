//! What is counted of sessions.

use std::sync::LazyLock;

use conversation::{Cause, Fact, ResumeOutcome};
use prometheus::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, exponential_buckets,
};
use telemetry::register;

/// Sessions that live on this node.
pub(crate) static SESSIONS: LazyLock<IntGauge> =
    LazyLock::new(|| register::gauge("roundhouse_sessions", "Sessions that live on this node."));

/// Sessions made here.
pub(crate) static SESSIONS_OPENED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_sessions_opened_total", "Sessions made on this node.")
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
        "Sessions refused because the node or the tenant holds as many as it may.",
    )
});

/// Requests of clients that have no final response yet.
pub(crate) static EXCHANGES: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_requests_in_flight",
        "Requests of clients that wait for their final response.",
    )
});

/// Connections that are being told something.
pub(crate) static SINKS_OPEN: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_sinks",
        "Connections of clients that wait for an answer or hold a stream.",
    )
});

/// Connections that were cut because they were too slow.
pub(crate) static SINKS_OVERFLOWED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_sinks_overflowed_total",
        "Connections cut because their client did not keep up.",
    )
});

/// Posts and streams refused because too much waited.
pub(crate) static BUSY: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_busy_total",
        "Posts and streams refused because a session was too busy.",
    )
});

/// Entries that the store acknowledged.
pub(crate) static LOG_ENTRIES: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_log_entries_total", "Log entries that the store acknowledged.")
});

/// Batches that have to be sent again.
pub(crate) static LOG_RETRIES: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_log_retries_total",
        "Writes to the log that failed and were repeated.",
    )
});

/// Sessions that their own node claimed anew.
pub(crate) static RECLAIMED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_sessions_reclaimed_total",
        "Sessions that their node claimed from itself after its lease had lapsed.",
    )
});

/// Sessions that were given up in order.
pub(crate) static RELEASED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_sessions_released_total",
        "Sessions given up in the store, asleep or handed over; the next touch takes them up.",
    )
});

/// Sessions that had to go before their requests were done.
pub(crate) static HANDOVERS_FORCED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_handovers_forced_total",
        "Sessions handed over with requests in flight, because the time to drain was over.",
    )
});

/// Requests that are held now.
pub(crate) static HELD: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_requests_held",
        "Requests held until their session can be reached or opened.",
    )
});

static HOLDS: LazyLock<[IntCounter; 3]> = LazyLock::new(|| {
    let help = "Requests that were held, or should have been, by what became of them.";
    let vec = register::counters("roundhouse_holds_total", help, &["outcome"]);
    ["reached", "expired", "refused"].map(|outcome| vec.with_label_values(&[outcome]))
});

/// What became of a request that was to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Its session was reached, or opened.
    Reached,
    /// Its time was over.
    Expired,
    /// As many were held as may be.
    Refused,
}

/// Counts the end of a hold.
pub(crate) fn count_hold(hold: Hold) {
    HOLDS[hold as usize].inc();
}

/// Streams that outlived an owner.
pub(crate) static STREAMS_REATTACHED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_streams_reattached_total",
        "Streams that went on at another owner, upon the same connection.",
    )
});

/// The label is looked up once, not per take-over.
static TAKEOVERS: LazyLock<[IntCounter; 4]> = LazyLock::new(|| {
    let help = "Sessions that this node took over, from another owner or without one.";
    let vec = register::counters("roundhouse_takeovers_total", help, &["cause"]);
    ["released", "lapsed", "dead", "own"].map(|cause| vec.with_label_values(&[cause]))
});

static TAKEOVERS_FAILED: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "Sessions that could not be taken up; their clients are held and try again.";
    register::counters("roundhouse_takeovers_failed_total", help, &["reason"])
});

/// How long taking a session up took.
pub(crate) static TAKEOVER_SECONDS: LazyLock<Histogram> = LazyLock::new(|| {
    let buckets = exponential_buckets(0.001, 3.0, 10).unwrap_or_default();
    register::histogram(
        "roundhouse_takeover_seconds",
        "How long it took to claim a session and to read it back.",
        buckets,
    )
});

/// Counts a session that was taken up.
pub(crate) fn count_takeover(cause: cluster::Cause) {
    let index = match cause {
        cluster::Cause::Released => 0,
        cluster::Cause::Lapsed => 1,
        cluster::Cause::Dead => 2,
        cluster::Cause::Own => 3,
    };
    TAKEOVERS[index].inc();
}

/// Why a session could not be taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Another node has claimed it.
    Taken,
    /// The store or the node's lease does not allow it now.
    NotNow,
    /// The node holds as many sessions as it may, or stops.
    NoRoom,
    /// This version cannot read what is left of it.
    Unreadable,
}

/// Counts a session that was not taken up.
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
        "Messages of servers that belonged nowhere.",
    )
});

static DROPPED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter("roundhouse_dropped_messages_total", "Messages dropped at a bound.")
});

static RESUMES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_resumes_total",
        "Clients that came back to a stream.",
        &["outcome"],
    )
});

/// Requests of clients, by how they ended. The label is looked up once, not per request.
static REQUESTS: LazyLock<[Histogram; 2]> = LazyLock::new(|| {
    // From a millisecond to about nine minutes.
    let buckets = exponential_buckets(0.001, 3.0, 13).unwrap_or_default();
    let vec: HistogramVec = register::histograms(
        "roundhouse_request_seconds",
        "How long clients waited for the final response to their requests.",
        &["outcome"],
        buckets,
    );
    [vec.with_label_values(&["error"]), vec.with_label_values(&["result"])]
});

/// Calls of peers that were taken.
pub(crate) static SERVED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_calls_served_total",
        "Posts, streams and deletions taken from other nodes for sessions of this one.",
    )
});

/// Calls sent through a third node.
pub(crate) static RELAYS: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_calls_sent_by_relay_total",
        "Posts, streams and deletions sent through a third node: there is no link to the owner.",
    )
});

/// Calls passed on for other nodes.
pub(crate) static RELAYED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_calls_relayed_total",
        "Posts, streams and deletions passed on between two nodes without a link.",
    )
});

/// The label is looked up once, not per call.
static HOPS: LazyLock<[IntCounter; 4]> = LazyLock::new(|| {
    let help = "Posts, streams and deletions forwarded to other nodes.";
    let vec = register::counters("roundhouse_calls_forwarded_total", help, &["outcome"]);
    ["answered", "not_started", "lost", "too_large"]
        .map(|outcome| vec.with_label_values(&[outcome]))
});

/// What came of a call to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// The owner answered, or began to.
    Answered,
    /// It did nothing, and is looked for again.
    NotStarted,
    /// It was lost on the way, or in the middle of a stream.
    Lost,
    /// The call or a reply exceeds `cluster.message_bytes_max`.
    TooLarge,
}

/// Counts a call to another node. A stream that breaks off is counted twice: as answered,
/// and as lost.
pub(crate) fn count_hop(hop: Hop) {
    HOPS[hop as usize].inc();
}

/// Why a session is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It said so itself.
    Over(Cause),
    /// Another node has it.
    Deposed,
    /// The store could not be told of it.
    Unrecorded,
    /// It panicked.
    Panicked,
}

impl End {
    fn label(self) -> &'static str {
        match self {
            Self::Over(Cause::Deleted) => "deleted",
            Self::Over(Cause::HandshakeFailed) => "not_born",
            Self::Over(Cause::Idle) => "idle",
            Self::Over(Cause::Disconnected) => "disconnected",
            Self::Over(Cause::Stopping) => "stopping",
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

/// Counts what a session tells.
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

/// Shows every metric from the start, so that a rate is right from the first event on.
pub(crate) fn show() {
    for gauge in [&SESSIONS, &EXCHANGES, &SINKS_OPEN, &HELD] {
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
    LazyLock::force(&HOLDS);
    LazyLock::force(&HOPS);
    LazyLock::force(&TAKEOVERS);
    LazyLock::force(&TAKEOVER_SECONDS);
    for reason in ["taken", "not_now", "no_room", "unreadable"] {
        TAKEOVERS_FAILED.with_label_values(&[reason]);
    }
    LazyLock::force(&REQUESTS);
    for cause in ["deleted", "not_born", "idle", "disconnected", "stopping"] {
        SESSIONS_ENDED.with_label_values(&[cause]);
    }
    for cause in ["asleep", "moved", "deposed", "unrecorded", "panicked"] {
        SESSIONS_ENDED.with_label_values(&[cause]);
    }
    for outcome in ["replayed", "trimmed", "finished", "unknown"] {
        RESUMES.with_label_values(&[outcome]);
    }
}
