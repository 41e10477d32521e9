//! The endpoints for operators and their machines: `/metrics`, `/healthz` and `/readyz`, which
//! are open to every client that reaches the port, and `/drain`, which needs a token. Plain HTTP.

use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_http::header::{self, HeaderValue};
use actix_http::{ConnectionType, HttpService, KeepAlive, Method, Request, Response, StatusCode};
use actix_web::dev::Server;
use actors::Handle;
use bytes::Bytes;
use telemetry::{METRICS_CONTENT_TYPE, Readiness, metrics_text};

use crate::body::Body;
use crate::connection;
use crate::drain::Drain;
use crate::head_timeout::{Served, Serving, Timed};
use crate::settings::AdminToken;

const TEXT: &str = "text/plain; charset=utf-8";

/// Most open connections. At the limit, further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;

/// Limits for a head to arrive, for an idle connection to be kept for its next request, and for
/// sent data to stay unread. They prevent one client from blocking connections of the others.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const KEEP_ALIVE: Duration = Duration::from_secs(5);
const WRITE_TIMEOUT_SECS: u32 = 10;

/// How long requests in flight may take at a node that is to drain, if the request names no time.
const GRACE: Duration = Duration::from_secs(10);

/// The interval at which a draining node checks whether it has new sessions.
const LOOK: Duration = Duration::from_secs(1);

/// What the endpoints for operators read and change.
#[derive(Clone)]
pub(crate) struct Operated {
    pub(crate) readiness: Readiness,
    pub(crate) handle: Handle,
    pub(crate) drain: Arc<Drain>,
    /// The token that a drain request must carry; without one every drain request is refused.
    pub(crate) token: Option<AdminToken>,
}

/// The HTTP service for operators.
pub(crate) fn server(listener: TcpListener, operated: Operated) -> std::io::Result<Server> {
    let service = move || {
        let operated = operated.clone();
        let http = HttpService::build()
            .keep_alive(KeepAlive::Timeout(KEEP_ALIVE))
            .client_request_timeout(HEAD_TIMEOUT)
            .client_disconnect_timeout(Duration::from_secs(1))
            .on_connect_ext(|connection: &Timed, shared| {
                shared.insert(Rc::clone(connection.heads()));
            })
            .h1(move |request: Request| {
                let serving = Serving::of(&request);
                let response = answer(&request, &operated);
                let response = response.map_body(|_, body| Served::new(body, serving));
                async move { Ok::<_, std::convert::Infallible>(response) }
            });
        let limits = connection::ConnectionLimits {
            head_timeout: HEAD_TIMEOUT,
            write_timeout_secs: WRITE_TIMEOUT_SECS,
        };
        connection::connection_service(http, limits, None)
    };
    let server = Server::build()
        .workers(1)
        .max_concurrent_connections(CONNECTIONS_MAX)
        .disable_signals()
        .listen("operators", listener, service)?
        .run();
    Ok(server)
}

fn answer(request: &Request, operated: &Operated) -> Response<Body> {
    let head = request.head();
    // A page in a browser may not use these endpoints, whatever host name it used.
    if head.headers.contains_key(header::ORIGIN) {
        return text(StatusCode::FORBIDDEN, TEXT, "not for pages\n");
    }
    if head.method == Method::POST && head.uri.path() == "/drain" {
        return match refusal(operated.token.as_ref(), head.headers.get(header::AUTHORIZATION)) {
            None => drain(operated, head.uri.query().unwrap_or_default()),
            Some(refusal) => refusal,
        };
    }
    if head.method != Method::GET && head.method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET is taken here\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        response.head_mut().set_connection_type(ConnectionType::Close);
        return response;
    }
    match head.uri.path() {
        "/metrics" => text(StatusCode::OK, METRICS_CONTENT_TYPE, metrics_text()),
        // Liveness only: readiness is reported by `/readyz`.
        "/healthz" => text(StatusCode::OK, TEXT, "alive\n"),
        "/readyz" => ready(&operated.readiness),
        _ => text(StatusCode::NOT_FOUND, TEXT, "there are /metrics, /healthz, /readyz\n"),
    }
}

/// The refusal of a drain request, if it is refused.
fn refusal(token: Option<&AdminToken>, shown: Option<&HeaderValue>) -> Option<Response<Body>> {
    let Some(token) = token else {
        let why = "POST /drain is off: set `admin.token_file` to a file that holds a token, and \
                   send it as `Authorization: Bearer <token>`\n";
        return Some(text(StatusCode::FORBIDDEN, TEXT, why));
    };
    let bearer = shown.and_then(|shown| {
        let (scheme, token) = shown.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
    });
    if bearer.is_some_and(|bearer| token.is(bearer)) {
        return None;
    }
    tracing::warn!(
        "refused POST /drain: the request does not carry the token of `admin.token_file`"
    );
    let why = "send the token of `admin.token_file` as `Authorization: Bearer <token>`\n";
    let mut response = text(StatusCode::UNAUTHORIZED, TEXT, why);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Some(response)
}

/// Starts a drain; the process goes on. `?secs=` sets how long requests in flight may take. A
/// repeated request changes nothing.
fn drain(operated: &Operated, query: &str) -> Response<Body> {
    let secs = query.split('&').find_map(|pair| pair.strip_prefix("secs="));
    let grace = match secs.map(str::parse) {
        None => GRACE,
        Some(Ok(secs)) => Duration::from_secs(secs),
        Some(Err(_)) => {
            return text(StatusCode::BAD_REQUEST, TEXT, "write ?secs= and a number of seconds\n");
        }
    };
    operated.readiness.hold("draining");
    if !operated.drain.begin_drain() {
        tracing::info!("an operator has the node drain");
        let handle = operated.handle.clone();
        actix_rt::spawn(async move {
            // Sessions that arrive until the balancer has noticed are released as well.
            loop {
                handle.drain(grace).await;
                while handle.sessions() == 0 {
                    tokio::time::sleep(LOOK).await;
                }
            }
        });
    }
    text(StatusCode::ACCEPTED, TEXT, "draining\n")
}

fn ready(readiness: &Readiness) -> Response<Body> {
    let (reasons, remarks) = (readiness.reasons(), readiness.remarks());
    let more: String = remarks.iter().map(|remark| format!("remark: {remark}\n")).collect();
    if reasons.is_empty() {
        return text(StatusCode::OK, TEXT, format!("ready\n{more}"));
    }
    let reasons = format!("not ready: {}\n{more}", reasons.join(", "));
    text(StatusCode::SERVICE_UNAVAILABLE, TEXT, reasons)
}

fn text(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::with_body(status, Body::Whole(body.into()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
