//! Metrics of the front. Labels come from closed sets: no label is a client's text.

use std::sync::LazyLock;

use actix_http::{Method, StatusCode};
use prometheus::{IntCounter, IntCounterVec, IntGauge};
use telemetry::register;

use crate::route::Endpoint;

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
        "Sessions refused because clients of one address created them too fast.",
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

/// Registers every metric at the start, so that a rate is right from the first event on.
pub(crate) fn register_metrics() {
    LazyLock::force(&BY_KIND);
    LazyLock::force(&STREAMS);
    LazyLock::force(&CONNECTIONS);
    LazyLock::force(&CONNECTIONS_MAX);
    LazyLock::force(&SESSIONS_THROTTLED);
    LazyLock::force(&CLOSED);
    LazyLock::force(&CUT);
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
