//! The endpoints for operators and their machines: `/metrics`, `/healthz` and `/readyz`, which
//! are open to every client that reaches the port, and `/drain` and `/revocations`, which need the
//! token, or a Unix socket if there is no token. Plain HTTP.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix_http::header::{self, HeaderValue};
use actix_http::{ConnectionType, Method, Request, RequestHead, Response, StatusCode};
use actors::Handle;
use bytes::Bytes;
use telemetry::{METRICS_CONTENT_TYPE, Readiness, metrics_text};
use tenants::Tenants;

use crate::admin_host::AdminHosts;
use crate::admin_revocations;
use crate::body::Body;
use crate::drain::{Drain, TakenBack};
use crate::settings::AdminToken;

/// The reason why a draining node is not ready.
const DRAINING: &str = "draining";

const TEXT: &str = "text/plain; charset=utf-8";

/// How long requests in flight may take at a node that is to drain, if the request names no time.
const GRACE: Duration = Duration::from_secs(10);

/// The interval at which a draining node checks whether it has new sessions.
const LOOK: Duration = Duration::from_secs(1);

/// What the endpoints for operators read and change.
#[derive(Clone)]
pub(crate) struct Operated {
    pub(crate) readiness: Readiness,
    /// The sessions; set when clients are served.
    pub(crate) handle: Arc<OnceLock<Handle>>,
    pub(crate) tenants: Arc<OnceLock<Tenants>>,
    pub(crate) drain: Arc<Drain>,
    pub(crate) access: Access,
}

/// Which clients of the listener may change something.
#[derive(Clone)]
pub(crate) enum Access {
    /// Clients of a Unix socket, whose permissions admit only the node's own user. They send the token
    /// if there is one.
    Socket { token: Option<AdminToken> },
    /// Clients of a TCP port that send this token; without one every change is refused.
    Port { token: Option<AdminToken>, hosts: AdminHosts },
}

/// Answers one request.
pub(crate) async fn answer(request: &Request, operated: &Operated) -> Response<Body> {
    let head = request.head();
    // A page in a browser may not use these endpoints under any host name.
    if head.headers.contains_key(header::ORIGIN) {
        return text(StatusCode::FORBIDDEN, TEXT, "not for pages\n");
    }
    if !names_allowed_host(head, &operated.access) {
        let why = "this host name is not allowed: use an IP address, or list the name in \
                   `admin.allowed_hosts`\n";
        return text(StatusCode::FORBIDDEN, TEXT, why);
    }
    match (&head.method, head.uri.path()) {
        (&Method::POST | &Method::DELETE, "/drain") => {
            match refusal(&operated.access, head.headers.get(header::AUTHORIZATION)) {
                Some(refusal) => refusal,
                None => match operated.handle.get() {
                    None => text(StatusCode::SERVICE_UNAVAILABLE, TEXT, "the node is starting\n"),
                    Some(handle) if head.method == Method::DELETE => {
                        take_drain_back(operated, handle)
                    }
                    Some(handle) => drain(operated, handle, head.uri.query().unwrap_or_default()),
                },
            }
        }
        (_, "/drain") => not_allowed("POST, DELETE"),
        (&Method::GET | &Method::POST | &Method::DELETE, "/revocations") => {
            revocations(head, operated).await
        }
        (_, "/revocations") => not_allowed("GET, POST, DELETE"),
        (&Method::GET | &Method::HEAD, path) => read(path, operated),
        _ => not_allowed("GET, HEAD"),
    }
}

/// The answer to each further request of a connection, which costs little.
pub(crate) fn one_request_only() -> Response<Body> {
    text(StatusCode::BAD_REQUEST, TEXT, "a connection serves one request\n")
}

async fn revocations(head: &RequestHead, operated: &Operated) -> Response<Body> {
    if let Some(refusal) = refusal(&operated.access, head.headers.get(header::AUTHORIZATION)) {
        return refusal;
    }
    let (Some(handle), Some(tenants)) = (operated.handle.get(), operated.tenants.get()) else {
        return text(StatusCode::SERVICE_UNAVAILABLE, TEXT, "the node is starting\n");
    };
    let query = head.uri.query().unwrap_or_default();
    let (status, body) = admin_revocations::answer(&head.method, query, handle, tenants).await;
    text(status, "application/json", format!("{body}\n"))
}

fn read(path: &str, operated: &Operated) -> Response<Body> {
    match path {
        "/metrics" => text(StatusCode::OK, METRICS_CONTENT_TYPE, metrics_text()),
        // Liveness only: readiness is reported by `/readyz`.
        "/healthz" => text(StatusCode::OK, TEXT, "alive\n"),
        "/readyz" => ready(&operated.readiness),
        _ => text(
            StatusCode::NOT_FOUND,
            TEXT,
            "there are /metrics, /healthz, /readyz, /drain, /revocations\n",
        ),
    }
}

fn not_allowed(methods: &'static str) -> Response<Body> {
    let why = format!("only {methods} is taken here\n");
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, why);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    // The body of the request is not read.
    response.head_mut().set_connection_type(ConnectionType::Close);
    response
}

/// Is the host of the request one for which this listener answers? A request may name its host in
/// its first line, too.
fn names_allowed_host(head: &RequestHead, access: &Access) -> bool {
    let Access::Port { hosts, .. } = access else { return true };
    let in_line = head.uri.authority().map(|authority| authority.as_str());
    let in_header = head.headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    in_line.into_iter().chain(in_header).all(|host| hosts.allows(host))
}

/// The refusal of a request that changes something, if it is refused.
fn refusal(access: &Access, shown: Option<&HeaderValue>) -> Option<Response<Body>> {
    let token = match access {
        Access::Socket { token: None } => return None,
        Access::Socket { token: Some(token) } | Access::Port { token: Some(token), .. } => token,
        Access::Port { token: None, .. } => {
            let why = "/drain and /revocations are off: set `admin.token_file` to a file that holds a token, and \
                       send it as `Authorization: Bearer <token>`\n";
            return Some(text(StatusCode::FORBIDDEN, TEXT, why));
        }
    };
    let bearer = shown.and_then(|shown| {
        let (scheme, token) = shown.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
    });
    if bearer.is_some_and(|bearer| token.is(bearer)) {
        return None;
    }
    tracing::warn!(
        "refused a request of an operator: it does not carry the token of `admin.token_file`"
    );
    let why = "send the token of `admin.token_file` as `Authorization: Bearer <token>`\n";
    let mut response = text(StatusCode::UNAUTHORIZED, TEXT, why);
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    Some(response)
}

/// Starts a drain; the process goes on. `?secs=` sets how long requests in flight may take. A
/// repeated request changes nothing.
fn drain(operated: &Operated, handle: &Handle, query: &str) -> Response<Body> {
    let secs = query.split('&').find_map(|pair| pair.strip_prefix("secs="));
    let grace = match secs.map(str::parse) {
        None => GRACE,
        Some(Ok(secs)) => Duration::from_secs(secs),
        Some(Err(_)) => {
            return text(StatusCode::BAD_REQUEST, TEXT, "write ?secs= and a number of seconds\n");
        }
    };
    operated.drain.begin_by_operator(|| {
        operated.readiness.hold(DRAINING);
        tracing::info!("an operator has the node drain");
        let handle = handle.clone();
        // Before the answer: then no client gets a new session that ends at once.
        handle.begin_drain();
        let draining = actix_rt::spawn(async move {
            // Sessions that arrive until the balancer has noticed are released as well.
            loop {
                handle.drain(grace).await;
                while handle.sessions() == 0 {
                    tokio::time::sleep(LOOK).await;
                }
            }
        });
        draining.abort_handle()
    });
    text(StatusCode::ACCEPTED, TEXT, "draining\n")
}

/// Takes back a drain that an operator began. A repeated request changes nothing.
fn take_drain_back(operated: &Operated, handle: &Handle) -> Response<Body> {
    let taken_back = operated.drain.take_back(|| {
        handle.cancel_drain();
        operated.readiness.clear(DRAINING);
        tracing::info!("an operator took the drain back; the node accepts sessions again");
    });
    match taken_back {
        TakenBack::Now => text(StatusCode::OK, TEXT, "drain taken back\n"),
        TakenBack::NotDraining => text(StatusCode::OK, TEXT, "not draining\n"),
        TakenBack::Stopping => {
            let why = "this drain cannot be taken back: the process was told to stop and is about \
                       to end; start it again\n";
            text(StatusCode::CONFLICT, TEXT, why)
        }
    }
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
    let mut response = Response::with_body(status, Body::whole(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
