//! What operators and their machines ask: `/metrics`, `/healthz`, `/readyz`. Plain HTTP,
//! asks nobody who they are, and changes nothing.

use std::net::TcpListener;

use actix_http::header::{self, HeaderValue};
use actix_http::{ConnectionType, Method, Request, Response, StatusCode};
use actix_web::HttpServer;
use actix_web::dev::{Server, fn_service};
use bytes::Bytes;
use telemetry::{METRICS_CONTENT_TYPE, Readiness, metrics_text};

use crate::body::Body;

const TEXT: &str = "text/plain; charset=utf-8";

/// Most open connections; at the bound further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;

/// The server for operators.
pub(crate) fn server(listener: TcpListener, readiness: Readiness) -> std::io::Result<Server> {
    let factory = move || {
        let readiness = readiness.clone();
        fn_service(move |request: Request| {
            let response = answer(&request, &readiness);
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

fn answer(request: &Request, readiness: &Readiness) -> Response<Body> {
    let head = request.head();
    // A browser's page has no business here, whatever name it found us by.
    if head.headers.contains_key(header::ORIGIN) {
        return text(StatusCode::FORBIDDEN, TEXT, "not for pages\n");
    }
    if head.method != Method::GET && head.method != Method::HEAD {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET is taken\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        response.head_mut().set_connection_type(ConnectionType::Close);
        return response;
    }
    match head.uri.path() {
        "/metrics" => text(StatusCode::OK, METRICS_CONTENT_TYPE, metrics_text()),
        // The process answers; whether it should get work is the next question.
        "/healthz" => text(StatusCode::OK, TEXT, "alive\n"),
        "/readyz" => ready(readiness),
        _ => text(StatusCode::NOT_FOUND, TEXT, "there are /metrics, /healthz and /readyz\n"),
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
    let mut response = Response::with_body(status, Body::Whole(body.into()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
