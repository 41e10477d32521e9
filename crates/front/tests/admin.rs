//! The endpoints for operators and their machines.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::kit::{
    POLITE, Reply, TOKEN, Wire, admin_address, request, start_with, start_with_admin,
};
use backends::Backends;
use front::{AdminAddress, AdminSettings, Running};
use telemetry::Readiness;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

async fn send_request(running: &Running, line: &str, headers: &str) -> Reply {
    let mut wire = Wire(TcpStream::connect(admin_address(running)).await.unwrap());
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
    assert_eq!(send_request(&running, "DELETE /drain", "").await.status, 401);
    assert_eq!(send_request(&running, "GET /drain", "").await.status, 405);
    assert_eq!(send_request(&running, "GET /readyz", "").await.status, 200);
}

#[actix_rt::test]
async fn without_a_token_file_no_request_can_drain_the_node() {
    let running = start_with_admin(AdminSettings::default());
    for headers in ["", "Authorization: Bearer \r\n", "Authorization: Bearer a\r\n"] {
        for change in ["POST /drain", "DELETE /drain"] {
            let reply = send_request(&running, change, headers).await;
            assert_eq!(reply.status, 403);
            assert!(reply.body.contains("admin.token_file"), "{}", reply.body);
        }
    }
    for list in ["GET /v1/nodes", "GET /v1/tenants", "GET /v1/sessions", "DELETE /v1/sessions/x"] {
        let reply = send_request(&running, list, "Authorization: Bearer a\r\n").await;
        assert!(reply.status == 403 && reply.body.contains("roundhouse admin-key"), "{list}");
    }
    for open in ["GET /readyz", "GET /healthz", "GET /metrics"] {
        assert_eq!(send_request(&running, open, "").await.status, 200);
    }
}

#[actix_rt::test]
async fn a_head_that_does_not_arrive_within_a_second_ends_its_connection() {
    let running = start_with(Backends::default(), Readiness::default(), |_| {});
    for sent in ["", "G", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"] {
        let began = Instant::now();
        let mut wire = Wire(TcpStream::connect(admin_address(&running)).await.unwrap());
        wire.send(sent).await;
        wire.receive_until_close().await;
        assert!(began.elapsed() < Duration::from_secs(4), "{sent:?}: {:?}", began.elapsed());
    }
}

#[actix_rt::test]
async fn a_connection_serves_one_request() {
    let running = start_with(Backends::default(), Readiness::default(), |_| {});
    let mut wire = Wire(TcpStream::connect(admin_address(&running)).await.unwrap());
    wire.send(request("GET /healthz", "", "").repeat(2)).await;
    let read = wire.receive_until_close().await;
    assert!(read.starts_with("HTTP/1.1 200") && read.contains("connection: close"), "{read}");
    assert!(read.contains("HTTP/1.1 400") && read.matches("alive").count() == 1, "{read}");
}

/// Asks for `/healthz` several times. Fails unless each is answered within a second.
async fn check_healthz(running: &Running) {
    for probe in 0..10 {
        let asked = send_request(running, "GET /healthz", "");
        let reply = tokio::time::timeout(Duration::from_secs(1), asked).await;
        assert_eq!(reply.unwrap_or_else(|_| panic!("probe {probe}")).status, 200);
    }
}

#[actix_rt::test]
async fn connections_that_are_held_open_do_not_delay_healthz() {
    let running = start_with(Backends::default(), Readiness::default(), |_| {});
    let address = admin_address(&running);
    for count in [64, 400] {
        let mut held = Vec::new();
        for number in 0..count {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // A third sends nothing, a third sends a part of a head, a third reads no response.
            match number % 3 {
                1 => stream.write_all(b"GET /hea").await.unwrap(),
                2 => {
                    let asks = request("GET /metrics", "", "").repeat(200);
                    let _ = stream.try_write(asks.as_bytes());
                }
                _ => {}
            }
            held.push(stream);
        }
        check_healthz(&running).await;
    }
}

#[actix_rt::test]
async fn connections_that_are_opened_again_when_they_are_closed_do_not_delay_healthz() {
    let running = start_with(Backends::default(), Readiness::default(), |_| {});
    let address = admin_address(&running);
    let is_over = Arc::new(AtomicBool::new(false));
    let attack = std::thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let reconnects = async || {
                    while !is_over.load(Ordering::Relaxed) {
                        let Ok(mut stream) = TcpStream::connect(address).await else { continue };
                        let closed = stream.read_u8();
                        let _ = tokio::time::timeout(Duration::from_secs(1), closed).await;
                    }
                };
                futures_util::future::join_all((0..300).map(|_| reconnects())).await;
            });
        }
    });
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        check_healthz(&running).await;
    }
    is_over.store(true, Ordering::Relaxed);
    attack.join().unwrap();
}

#[actix_rt::test]
async fn only_addresses_local_names_and_allowed_names_are_hosts() {
    let allowed_hosts = vec!["node1.example".to_owned()];
    let running = start_with_admin(AdminSettings { allowed_hosts, ..AdminSettings::default() });
    for (host, status) in [
        ("10.1.2.3:9090", 200),
        ("[fd00::4]:9090", 200),
        ("localhost:9090", 200),
        ("node1.example:9090", 200),
        ("evil.example", 403),
        ("evil.example:9090", 403),
    ] {
        for path in ["/metrics", "/healthz", "/readyz"] {
            let reply =
                send_request(&running, &format!("GET {path}"), &format!("Host: {host}\r\n")).await;
            assert_eq!(reply.status, status, "{host} {path}");
            assert_eq!(reply.body.contains("admin.allowed_hosts"), status == 403);
        }
    }
    let line = "GET http://evil.example/metrics";
    assert_eq!(send_request(&running, line, "").await.status, 403);
    // HAProxy's checks have no `Host`. A browser cannot send such a request.
    let mut wire = Wire(TcpStream::connect(admin_address(&running)).await.unwrap());
    wire.send("GET /readyz HTTP/1.0\r\n\r\n").await;
    assert_eq!(wire.receive().await.status, 200);
}

async fn send_over_socket(path: &std::path::Path, line: &str) -> Reply {
    send_over_socket_with(path, line, "").await
}

async fn send_over_socket_with(path: &std::path::Path, line: &str, headers: &str) -> Reply {
    let mut wire = Wire(UnixStream::connect(path).await.unwrap());
    wire.send(request(line, &format!("Host: whatever\r\n{headers}"), "")).await;
    wire.receive().await
}

#[actix_rt::test]
async fn over_a_unix_socket_a_node_is_drained_and_resumed_without_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let listen = AdminAddress::Unix(path.clone());
    let running = start_with_admin(AdminSettings { listen, ..AdminSettings::default() });
    assert_eq!(send_over_socket(&path, "GET /healthz").await.status, 200);
    assert_eq!(send_over_socket(&path, "POST /drain").await.status, 202);
    assert_eq!(send_over_socket(&path, "GET /readyz").await.status, 503);
    assert_eq!(send_over_socket(&path, "DELETE /drain").await.status, 200);
    assert_eq!(send_over_socket(&path, "GET /readyz").await.status, 200);
    let reply = send_over_socket(&path, "GET /v1/nodes").await;
    assert!(reply.status == 200 && reply.body.contains(r#""self":true"#), "{}", reply.body);
    running.stop(Duration::ZERO).await;
    assert!(!path.exists());
}

/// A server of a tenant that runs as the node's user can connect to the socket as well.
#[actix_rt::test]
async fn over_a_unix_socket_the_token_is_needed_if_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("admin.sock");
    let listen = AdminAddress::Unix(path.clone());
    let token = front::AdminToken::new(TOKEN);
    let _running = start_with_admin(AdminSettings { listen, token, ..AdminSettings::default() });
    for change in ["POST /drain", "DELETE /drain"] {
        for headers in ["", "Authorization: Bearer wrong\r\n"] {
            assert_eq!(send_over_socket_with(&path, change, headers).await.status, 401);
        }
    }
    assert_eq!(send_over_socket(&path, "GET /readyz").await.status, 200);
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(send_over_socket_with(&path, "POST /drain", &bearer).await.status, 202);
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;

#[actix_rt::test]
async fn a_drain_of_a_lone_node_can_be_taken_back_any_number_of_times() {
    let node = crate::kit::node(crate::kit::parrot::backends(), |_| {});
    let bearer = &format!("Authorization: Bearer {TOKEN}\r\n");
    let initialize = async || {
        crate::kit::send_request(&node.running, "POST /demo/mcp", POLITE, INITIALIZE).await
    };
    for _ in 0..3 {
        assert_eq!(initialize().await.status, 200);
        assert_eq!(send_request(&node.running, "POST /drain?secs=5", bearer).await.status, 202);
        assert_eq!(initialize().await.status, 503);
        for said in ["drain taken back\n", "not draining\n"] {
            let reply = send_request(&node.running, "DELETE /drain", bearer).await;
            assert_eq!((reply.status, &*reply.body), (200, said));
            let reply = send_request(&node.running, "GET /readyz", "").await;
            assert_eq!((reply.status, &*reply.body), (200, "ready\n"));
        }
        let reply = initialize().await;
        assert_eq!((reply.status, reply.header("connection")), (200, None), "{}", reply.body);
    }
}

#[actix_rt::test]
async fn a_drain_that_began_with_the_end_of_the_process_is_not_taken_back() {
    let running = start_with(Backends::default(), Readiness::default(), |_| {});
    let bearer = &format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(send_request(&running, "POST /drain", bearer).await.status, 202);
    running.drain();
    let reply = send_request(&running, "DELETE /drain", bearer).await;
    assert_eq!(reply.status, 409);
    assert!(reply.body.contains("told to stop"), "{}", reply.body);
    assert_eq!(send_request(&running, "GET /readyz", "").await.status, 503);
    let reply = crate::kit::send_request(&running, "GET /demo/mcp", "", "").await;
    assert_eq!(reply.header("connection"), Some("close"));
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
