//! What operators and their machines ask: `/metrics`, `/healthz`, `/readyz`; and the one
//! thing they may tell, `/drain`. Plain HTTP, asks nobody who they are.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use actix_http::header::{self, HeaderValue};
use actix_http::{ConnectionType, Method, Request, Response, StatusCode};
use actix_web::HttpServer;
use actix_web::dev::{Server, fn_service};
use actors::Handle;
use bytes::Bytes;
use telemetry::{METRICS_CONTENT_TYPE, Readiness, metrics_text};

use crate::body::Body;
use crate::drain::Drain;

const TEXT: &str = "text/plain; charset=utf-8";

/// Most open connections; at the bound further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;

/// How long requests in flight may go on at a node that is told to drain without being told
/// for how long.
const GRACE: Duration = Duration::from_secs(10);

/// How often a draining node looks whether it has sessions again.
const LOOK: Duration = Duration::from_secs(1);

/// What operators learn of and change.
#[derive(Clone)]
pub(crate) struct Operated {
    pub(crate) readiness: Readiness,
    pub(crate) handle: Handle,
    pub(crate) drain: Arc<Drain>,
}

/// The server for operators.
pub(crate) fn server(listener: TcpListener, operated: Operated) -> std::io::Result<Server> {
    let factory = move || {
        let operated = operated.clone();
        fn_service(move |request: Request| {
            let response = answer(&request, &operated);
            async move { Ok::<_, std::convert::Infallible>(response) }
        })
    };
    let server = HttpServer::new(factory)
        .workers(1)
        .max_connections(CONNECTIONS_MAX)
        .disable_signals()
        .listen(listener)?
        .run();
    Ok(server)
}

fn answer(request: &Request, operated: &Operated) -> Response<Body> {
    let head = request.head();
    // A browser's page has no business here, whatever name it found us by.
    if head.headers.contains_key(header::ORIGIN) {
        return text(StatusCode::FORBIDDEN, TEXT, "not for pages\n");
    }
    if head.method == Method::POST && head.uri.path() == "/drain" {
        return drain(operated, head.uri.query().unwrap_or_default());
    }
    if head.method != Method::GET && head.method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET is taken here\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        response.head_mut().set_connection_type(ConnectionType::Close);
        return response;
    }
    match head.uri.path() {
        "/metrics" => text(StatusCode::OK, METRICS_CONTENT_TYPE, metrics_text()),
        // The process answers; whether it should get work is the next question.
        "/healthz" => text(StatusCode::OK, TEXT, "alive\n"),
        "/readyz" => ready(&operated.readiness),
        _ => text(StatusCode::NOT_FOUND, TEXT, "there are /metrics, /healthz, /readyz\n"),
    }
}

/// Has the node give its sessions up, while the process goes on: `?secs=` says how long
/// requests in flight may take. Told again, it is as it was.
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
    if !operated.drain.begin() {
        tracing::info!("an operator has the node drain");
        let handle = operated.handle.clone();
        actix_rt::spawn(async move {
            // What comes to be here until the balancer has looked is given up as well.
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
