//! The endpoints for operators and their machines.

use crate::kit::{Reply, TOKEN, Wire, request, start_with};
use backends::Backends;
use front::Running;
use telemetry::Readiness;
use tokio::net::TcpStream;

async fn send_request(running: &Running, line: &str, headers: &str) -> Reply {
    let mut wire = Wire(TcpStream::connect(running.admin_address()).await.unwrap());
    wire.send(request(line, headers, "")).await;
    wire.receive().await
}

#[actix_rt::test]
async fn a_node_is_alive_before_it_is_ready_and_reports_its_reason() {
    let readiness = Readiness::waiting_for("starting");
    let running = start_with(Backends::default(), readiness.clone(), |_| {});
    assert_eq!(send_request(&running, "GET /healthz", "").await.status, 200);
    let reply = send_request(&running, "GET /readyz", "").await;
    assert_eq!((reply.status, &*reply.body), (503, "not ready: starting\n"));
    readiness.clear("starting");
    assert_eq!(send_request(&running, "GET /readyz", "").await.status, 200);
}

#[actix_rt::test]
async fn requests_are_counted_by_endpoint_method_and_class() {
    let running = start_with(Backends::default(), Readiness::default(), |_| {});
    crate::kit::send_request(&running, "PUT /demo/mcp", "", "").await;
    let metrics = send_request(&running, "GET /metrics", "").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain"));
    let line = r#"roundhouse_front_requests_total{endpoint="mcp",method="other",status="4xx"} 1"#;
    assert!(metrics.body.contains(line), "{}", metrics.body);
    assert!(metrics.body.contains("roundhouse_front_connections "), "{}", metrics.body);
}

#[actix_rt::test]
async fn pages_and_writers_are_turned_away() {
    let running = start_with(Backends::default(), Readiness::default(), |_| {});
    let page = "Origin: http://localhost\r\n";
    assert_eq!(send_request(&running, "GET /metrics", page).await.status, 403);
    assert_eq!(send_request(&running, "POST /metrics", "").await.status, 405);
    assert_eq!(send_request(&running, "GET /", "").await.status, 404);
}

#[actix_rt::test]
async fn a_request_to_drain_without_the_token_changes_nothing() {
    let running = start_with(Backends::default(), Readiness::default(), |_| {});
    let half = &TOKEN[..TOKEN.len() - 1];
    for shown in ["", "Bearer", "Bearer ", half, TOKEN].map(str::to_owned).into_iter().chain([
        format!("Bearer {half}"),
        format!("Bearer {TOKEN}x"),
        format!("Basic {TOKEN}"),
    ]) {
        let reply =
            send_request(&running, "POST /drain", &format!("Authorization: {shown}\r\n")).await;
        assert_eq!(reply.status, 401, "{shown}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        assert!(reply.body.contains("admin.token_file"), "{}", reply.body);
    }
    assert_eq!(send_request(&running, "POST /drain", "").await.status, 401);
    assert_eq!(send_request(&running, "GET /readyz", "").await.status, 200);
}

#[actix_rt::test]
async fn without_a_token_file_no_request_can_drain_the_node() {
    let running = crate::kit::start_without_token();
    for headers in ["", "Authorization: Bearer \r\n", "Authorization: Bearer a\r\n"] {
        let reply = send_request(&running, "POST /drain", headers).await;
        assert_eq!(reply.status, 403);
        assert!(reply.body.contains("admin.token_file"), "{}", reply.body);
    }
    for open in ["GET /readyz", "GET /healthz", "GET /metrics"] {
        assert_eq!(send_request(&running, open, "").await.status, 200);
    }
}

/// The admin port accepts 64 connections.
#[actix_rt::test]
async fn a_second_head_that_never_ends_keeps_no_connection_of_the_admin_port() {
    let running = start_with(Backends::default(), Readiness::default(), |_| {});
    let mut wire = Wire(TcpStream::connect(running.admin_address()).await.unwrap());
    wire.send(request("GET /healthz", "", "")).await;
    assert_eq!(wire.receive().await.status, 200);
    wire.send("G").await;
    assert!(wire.receive_until_close().await.starts_with("HTTP/1.1 408"));
}

#[actix_rt::test]
async fn a_draining_node_is_not_ready_and_asks_its_clients_to_close() {
    let running = start_with(Backends::default(), Readiness::default(), |_| {});
    let bearer = &format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(send_request(&running, "POST /drain?secs=soon", bearer).await.status, 400);
    assert_eq!(send_request(&running, "GET /readyz", "").await.status, 200);
    assert_eq!(
        send_request(&running, "POST /drain", "Origin: http://localhost\r\n").await.status,
        403
    );
    for _ in 0..2 {
        assert_eq!(send_request(&running, "POST /drain?secs=1", bearer).await.status, 202);
    }
    let reply = send_request(&running, "GET /readyz", "").await;
    assert_eq!((reply.status, &*reply.body), (503, "not ready: draining\n"));
    let reply = crate::kit::send_request(&running, "GET /demo/mcp", "", "").await;
    assert_eq!(reply.header("connection"), Some("close"));
}
