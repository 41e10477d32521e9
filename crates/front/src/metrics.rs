//! Metrics of the front. Labels come from closed sets: no label is a client's text.

use std::sync::{Arc, LazyLock};

use actix_http::{Method, StatusCode};
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use telemetry::{ExchangeRecord, Outcome, register};

use crate::over_limit::LimitKind;
use crate::route::Endpoint;

/// How long messages take, by the names of OpenTelemetry's conventions.
pub(crate) const OPERATION_SECONDS: &str = "mcp_server_operation_duration_seconds";

static REQUESTS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_front_requests_total",
        "HTTP requests answered, by endpoint, method and class of status.",
        &["endpoint", "method", "status"],
    )
});

/// Every label combination, resolved once: counting a request is one addition.
static BY_KIND: LazyLock<[[[IntCounter; 3]; 5]; 4]> = LazyLock::new(|| {
    ["mcp", "sse", "messages", "none"].map(|endpoint| {
        ["get", "post", "delete", "options", "other"].map(|method| {
            ["2xx", "4xx", "5xx"]
                .map(|status| REQUESTS.with_label_values(&[endpoint, method, status]))
        })
    })
});

/// Requests that took turns with those of other tenants before they were served.
pub(crate) static REQUESTS_DELAYED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_front_requests_delayed_total",
        "Requests of tenants with many requests that waited for their turn, since other threads used the core.",
    )
});

/// SSE streams that are open now.
pub(crate) static STREAMS: LazyLock<IntGauge> =
    LazyLock::new(|| register::gauge("roundhouse_front_streams", "SSE streams that are open now."));

/// Connections that are open now.
pub(crate) static CONNECTIONS: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge("roundhouse_front_connections", "Connections of clients that are open now.")
});

/// Sessions refused because of their client's address.
pub(crate) static SESSIONS_THROTTLED: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_front_sessions_throttled_total",
        "Sessions, and pages that link accounts, refused because clients of one address asked for them too fast.",
    )
});

/// Most connections that clients may have.
pub(crate) static CONNECTIONS_MAX: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge(
        "roundhouse_front_connections_max",
        "Most connections that clients may have, within the limit of descriptors.",
    )
});

/// Why the node closed a connection that it could have kept.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Closed {
    /// It was idle, and its place was needed.
    Idle = 0,
    /// Its address had too many.
    Address = 1,
}

static CLOSED: LazyLock<[IntCounter; 2]> = LazyLock::new(|| {
    let closed = register::counters(
        "roundhouse_front_connections_closed_total",
        "Connections closed by the node to make room, by reason.",
        &["reason"],
    );
    ["idle", "address"].map(|reason| closed.with_label_values(&[reason]))
});

/// Counts a connection that was closed to make room.
pub(crate) fn count_closed(reason: Closed) {
    CLOSED[reason as usize].inc();
}

/// How a TLS handshake with a client ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handshake {
    /// With a signature of the certificate's key.
    Completed = 0,
    /// With a ticket of an earlier connection.
    Resumed = 1,
    /// The client sent something else than TLS.
    NotTls = 2,
    /// The client has no version, cipher or protocol in common with the node.
    Incompatible = 3,
    /// The client ended it with an alert: it does not trust the certificate.
    RefusedByClient = 4,
    /// The client sent what is no handshake.
    Invalid = 5,
    /// The connection ended first: the client left, or took too long.
    Unfinished = 6,
    /// The listener has no TLS, and the client began a handshake.
    ListenerWithoutTls = 7,
}

static HANDSHAKES: LazyLock<[IntCounter; 8]> = LazyLock::new(|| {
    let handshakes = register::counters(
        "roundhouse_front_tls_handshakes_total",
        "TLS handshakes with clients that are over, by outcome.",
        &["outcome"],
    );
    [
        "completed",
        "resumed",
        "not_tls",
        "incompatible",
        "refused_by_client",
        "invalid",
        "unfinished",
        "listener_without_tls",
    ]
    .map(|outcome| handshakes.with_label_values(&[outcome]))
});

/// Counts a TLS handshake that is over.
pub(crate) fn count_handshake(outcome: Handshake) {
    HANDSHAKES[outcome as usize].inc();
}

static CERTIFICATE_ENDS: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    register::gauges(
        "roundhouse_front_tls_certificate_expiry_timestamp_seconds",
        "When a certificate for clients ends, by its name in the settings.",
        &["certificate"],
    )
});

/// Shows when each of these certificates ends, and nothing of former ones.
pub(crate) fn show_certificates<'a>(ends: impl Iterator<Item = (&'a str, i64)>) {
    CERTIFICATE_ENDS.reset();
    ends.for_each(|(name, ends)| CERTIFICATE_ENDS.with_label_values(&[name]).set(ends));
}

/// Why a body was answered 408.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// It arrived too slowly, or took too long.
    Slow = 0,
    /// Its memory was needed for another body of the tenant.
    Room = 1,
}

static CUT: LazyLock<[IntCounter; 2]> = LazyLock::new(|| {
    let cut = register::counters(
        "roundhouse_front_bodies_cut_total",
        "Bodies of requests that were not received to their end, by reason.",
        &["reason"],
    );
    ["slow", "room"].map(|reason| cut.with_label_values(&[reason]))
});

/// Counts a body that was answered 408.
pub(crate) fn count_cut(reason: Cut) {
    CUT[reason as usize].inc();
}

static TENANT_REQUESTS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_tenant_requests_total",
        "HTTP requests of a tenant's clients that are over, by outcome.",
        &["tenant", "outcome"],
    )
});

static TENANT_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    register::histograms(
        "roundhouse_tenant_request_seconds",
        "Time of a tenant's requests that ended with a result or an error, to the last byte.",
        &["tenant"],
        vec![0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0],
    )
});

static TENANT_BYTES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_tenant_bytes_total",
        "Bytes of the bodies of a tenant's requests and responses.",
        &["tenant", "direction"],
    )
});

static TENANT_LIMITED: LazyLock<IntCounterVec> = LazyLock::new(|| {
    register::counters(
        "roundhouse_tenant_limited_total",
        "Requests of a tenant's clients refused over a limit of the whole cluster, by kind of limit.",
        &["tenant", "limit"],
    )
});

/// The metrics of one tenant, or of all that share a label. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct TenantMeters(Arc<Meters>);

#[derive(Debug)]
struct Meters {
    requests: [IntCounter; 7],
    seconds: Histogram,
    bytes_in: IntCounter,
    bytes_out: IntCounter,
    limited: [IntCounter; 8],
}

impl TenantMeters {
    /// The metrics with this label, resolved once: counting is a few additions.
    pub(crate) fn of(label: &str) -> Self {
        let outcomes = ["result", "error", "tool_error", "accepted", "refused", "left", "other"];
        Self(Arc::new(Meters {
            requests: outcomes.map(|outcome| TENANT_REQUESTS.with_label_values(&[label, outcome])),
            seconds: TENANT_SECONDS.with_label_values(&[label]),
            bytes_in: TENANT_BYTES.with_label_values(&[label, "in"]),
            bytes_out: TENANT_BYTES.with_label_values(&[label, "out"]),
            limited: LimitKind::ALL
                .map(|kind| TENANT_LIMITED.with_label_values(&[label, kind.name()])),
        }))
    }

    /// Counts a request that was refused over a limit.
    pub(crate) fn count_limited(&self, kind: LimitKind) {
        self.0.limited[kind as usize].inc();
    }

    /// Counts one exchange.
    pub(crate) fn count(&self, record: &ExchangeRecord) {
        let meters = &*self.0;
        let number = match record.outcome {
            Outcome::Result => 0,
            Outcome::Error => 1,
            Outcome::ToolError => 2,
            Outcome::Accepted => 3,
            Outcome::Refused => 4,
            Outcome::Left => 5,
            Outcome::Ended | Outcome::Cancelled | Outcome::Streamed | Outcome::Broken => 6,
        };
        meters.requests[number].inc();
        if matches!(record.outcome, Outcome::Result | Outcome::Error | Outcome::ToolError) {
            meters.seconds.observe(record.duration.as_secs_f64());
        }
        meters.bytes_in.inc_by(record.bytes_in);
        meters.bytes_out.inc_by(record.bytes_out);
    }
}

/// Registers every metric at the start, so that a rate is right from the first event on.
pub(crate) fn register_metrics() {
    LazyLock::force(&BY_KIND);
    LazyLock::force(&STREAMS);
    LazyLock::force(&CONNECTIONS);
    LazyLock::force(&CONNECTIONS_MAX);
    LazyLock::force(&REQUESTS_DELAYED);
    LazyLock::force(&SESSIONS_THROTTLED);
    LazyLock::force(&CLOSED);
    LazyLock::force(&CUT);
    LazyLock::force(&HANDSHAKES);
    LazyLock::force(&CERTIFICATE_ENDS);
}

/// Counts one answered request.
pub(crate) fn count_response(endpoint: Option<Endpoint>, method: &Method, status: StatusCode) {
    let endpoint = endpoint.map_or(3, |endpoint| endpoint as usize);
    let method = match *method {
        Method::GET => 0,
        Method::POST => 1,
        Method::DELETE => 2,
        Method::OPTIONS => 3,
        _ => 4,
    };
    let status = match status.as_u16() {
        ..400 => 0,
        400..500 => 1,
        500.. => 2,
    };
    BY_KIND[endpoint][method][status].inc();
}

/// Adds one to a gauge until it is dropped.
#[derive(Debug)]
pub(crate) struct GaugeGuard(&'static IntGauge);

impl GaugeGuard {
    /// Adds one.
    pub(crate) fn new(gauge: &'static LazyLock<IntGauge>) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
