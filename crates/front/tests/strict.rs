//! Requests that the HTTP layer accepts and the front refuses: another program in front of the node
//! might parse them differently, or the node cannot perform them.

use std::time::Duration;

use front::Running;
use tokio::io::AsyncReadExt as _;

use crate::kit::session::{Session, call};
use crate::kit::{POLITE, Wire, node, parrot, request, send_request, start};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// The status of the only response to these bytes, and whether the connection was closed.
async fn answered(front: &Running, bytes: &str) -> (u16, bool) {
    let mut wire = Wire::open(front).await;
    wire.send(bytes).await;
    let status = wire.receive().await.status;
    let mut piece = [0; 100];
    let read = wire.0.read(&mut piece);
    let read = tokio::time::timeout(Duration::from_millis(300), read).await;
    (status, matches!(read, Ok(Ok(0) | Err(_))))
}

#[actix_rt::test]
async fn a_head_that_another_parser_could_read_differently_is_400() {
    let front = start(|_| {});
    let plain = request("POST /demo/mcp", POLITE, PING);
    assert_eq!(answered(&front, &plain).await, (400, false), "there is no session");
    let get = request("GET /demo/mcp", "Accept: text/event-stream\r\nMcp-Session-Id: x\r\n", "");
    assert_eq!(answered(&front, &get).await, (404, false));
    for (from, to) in [
        (" HTTP/1.1\r\n", " HTTP/1.1\n"),
        ("Mcp-Session-Id: x\r\n", "Mcp-Session-Id: x\n"),
        ("\r\n\r\n", "\r\n\n"),
        ("GET ", "\nGET "),
        ("/demo/mcp", "/demo/mcp#fragment"),
        ("/demo/mcp", "/demo/mcp?a#b"),
    ] {
        let lenient = get.replacen(from, to, 1);
        assert_eq!(answered(&front, &lenient).await, (400, true), "{lenient:?}");
        // The same as a later request on a connection.
        let mut wire = Wire::open(&front).await;
        for (bytes, status) in [(&get, 404), (&lenient, 400)] {
            wire.send(bytes).await;
            assert_eq!(wire.receive().await.status, status, "{lenient:?}");
        }
        // The same ahead of an answer.
        let mut wire = Wire::open(&front).await;
        wire.send(format!("{get}{plain}{lenient}")).await;
        let read = wire.receive_until_close().await;
        let statuses: Vec<_> = read.split("HTTP/1.1 ").skip(1).map(|reply| &reply[..3]).collect();
        assert_eq!(statuses, ["404", "400", "400"], "{lenient:?}: {read}");
        assert_eq!(read.matches("connection: close").count(), 1, "{read}");
    }
    for (target, status) in [("http", 404), ("https", 404), ("ftp", 400), ("ws", 400)] {
        let target = format!("{target}://localhost/demo/mcp");
        let absolute = get.replacen("/demo/mcp", &target, 1);
        assert_eq!(answered(&front, &absolute).await.0, status, "{target}");
    }
}

#[actix_rt::test]
async fn a_host_whose_port_is_no_number_is_403() {
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let front = start(|settings| settings.listen = listen.parse().unwrap());
        let get = "Accept: text/event-stream\r\nMcp-Session-Id: x\r\n";
        for (host, status) in [("localhost:80", 404), ("localhost:+80", 403), ("localhost:x", 403)]
        {
            let headers = format!("Host: {host}\r\n{get}");
            let reply = send_request(&front, "GET /demo/mcp", &headers, "").await;
            assert_eq!(reply.status, status, "{host} at {listen}");
        }
    }
}

#[actix_rt::test]
async fn a_page_of_another_site_cannot_hide_its_origin() {
    let front = node(parrot::backends(), |_| {}).running;
    for (site, origin, status) in [
        ("cross-site", "", 403),
        ("same-site", "", 403),
        ("cross-site", "Origin: http://localhost:3000\r\n", 200),
        ("cross-site", "Origin: https://evil.example\r\n", 403),
        ("same-origin", "", 200),
        ("none", "", 200),
    ] {
        let headers = format!("Accept: */*\r\nSec-Fetch-Site: {site}\r\n{origin}");
        let reply = send_request(&front, "GET /demo/sse", &headers, "").await;
        assert_eq!(reply.status, status, "{site} {origin}");
    }
}

#[actix_rt::test]
async fn an_encoded_body_is_415() {
    let front = start(|_| {});
    for (encoding, status) in [("gzip", 415), ("br, gzip", 415), ("identity", 400)] {
        let headers = format!("{POLITE}Content-Encoding: {encoding}\r\n");
        let reply = send_request(&front, "POST /demo/mcp", &headers, PING).await;
        assert_eq!(reply.status, status, "{encoding}");
        let headers = format!("{headers}Mcp-Session-Id: x\r\n");
        let status = if status == 400 { 404 } else { status };
        assert_eq!(send_request(&front, "POST /demo/mcp", &headers, PING).await.status, status);
    }
}

#[actix_rt::test]
async fn a_body_that_is_too_long_is_refused_before_it_is_sent() {
    let front = start(|settings| settings.body_bytes_max = 1 << 20);
    for (session, length, refused) in [
        ("", 1_000_000, true),
        ("Mcp-Session-Id: x\r\n", 1_000_000, false),
        ("Mcp-Session-Id: x\r\n", 2_000_000, true),
    ] {
        let headers =
            format!("{POLITE}{session}Expect: 100-continue\r\nContent-Length: {length}\r\n");
        let mut wire = Wire::open(&front).await;
        wire.send(request("POST /demo/mcp", &headers, "")).await;
        let reply = wire.receive().await;
        assert_eq!(reply.status, if refused { 413 } else { 100 }, "{headers}");
        if refused {
            assert_eq!(reply.code_without_id(), -32600);
            assert_eq!(reply.header("connection"), Some("close"));
        }
    }
}

#[actix_rt::test]
async fn an_expectation_is_met_or_refused() {
    let front = start(|_| {});
    let length = format!("Content-Length: {}\r\n", PING.len());
    let mut wire = Wire::open(&front).await;
    wire.send(request("POST /demo/mcp", &format!("{POLITE}{length}Expect: 100-Continue\r\n"), ""))
        .await;
    assert_eq!(wire.receive().await.status, 100);
    wire.send(PING).await;
    assert_eq!(wire.receive().await.status, 400);
    let other = format!("{POLITE}Expect: 200-ok\r\n");
    assert_eq!(send_request(&front, "POST /demo/mcp", &other, PING).await.status, 417);
}

#[actix_rt::test]
async fn a_session_of_streamable_http_takes_no_request_at_the_other_endpoint() {
    let front = node(parrot::backends(), |_| {}).running;
    let session = Session::begin(&front, "2025-06-18").await;
    let line = format!("POST /demo/messages?session={}", session.id);
    for tool in ["echo", "steps"] {
        let call = call(7, tool, serde_json::json!({ "text": "x" })).to_string();
        assert_eq!(send_request(&front, &line, POLITE, &call).await.status, 404, "{tool}");
    }
    assert_eq!(session.post(&call(8, "echo", serde_json::json!({}))).await.status(), 200);
}
