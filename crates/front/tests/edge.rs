//! Answers of the front to requests that reach no session.

use std::time::Duration;

use crate::kit::{POLITE, Wire, request, send_request, start};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

// holds: POST-04
#[actix_rt::test]
async fn a_post_must_be_declared_as_json() {
    let front = start(|_| {});
    for (kind, status) in [
        ("text/plain", 415),
        ("application/json; charset=utf-16", 415),
        ("application/json;charset=UTF-8", 400),
    ] {
        let headers = format!("Content-Type: {kind}\r\nAccept: */*\r\n");
        assert_eq!(
            send_request(&front, "POST /demo/mcp", &headers, PING).await.status,
            status,
            "{kind}"
        );
    }
    assert_eq!(send_request(&front, "POST /demo/mcp", "Accept: */*\r\n", PING).await.status, 415);
}

// holds: POST-03, GET-03
#[actix_rt::test]
async fn a_post_must_accept_both_answers_and_a_get_events() {
    let front = start(|_| {});
    let json = "Content-Type: application/json\r\n";
    for (accept, status) in [
        ("Accept: application/json\r\n", 406),
        ("Accept: text/event-stream\r\n", 406),
        ("Accept: text/event-stream;q=0.1, application/json, */*\r\n", 400),
        ("Accept: application/json\r\naccept: text/event-stream\r\n", 400),
        ("", 400),
    ] {
        let reply = send_request(&front, "POST /demo/mcp", &format!("{json}{accept}"), PING).await;
        assert_eq!(reply.status, status, "{accept}");
    }
    let get = send_request(&front, "GET /demo/mcp", "Accept: application/json\r\n", "").await;
    assert_eq!(get.status, 406);
    let get = send_request(&front, "GET /demo/sse", "Accept: application/json\r\n", "").await;
    assert_eq!(get.status, 406);
}

// holds: POST-09, RPC-06
#[actix_rt::test]
async fn what_is_not_a_message_is_answered_without_an_id() {
    let front = start(|_| {});
    for (body, code) in [
        ("{", -32700),
        ("nonsense", -32700),
        ("[]", -32600),
        (r#"{"jsonrpc":"1.0","method":"x"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, -32600),
    ] {
        for path in ["/demo/mcp", "/demo/messages?session=x"] {
            let reply = send_request(&front, &format!("POST {path}"), POLITE, body).await;
            assert_eq!(reply.status, 400, "{body}");
            assert_eq!(reply.code_without_id(), code, "{body}");
            assert_eq!(reply.header("content-type"), Some("application/json"));
        }
    }
    let mut wire = Wire::open(&front).await;
    wire.send(request("POST /demo/mcp", &format!("{POLITE}Content-Length: 2\r\n"), "")).await;
    wire.send(b"\"\xff").await;
    assert_eq!(wire.receive().await.code_without_id(), -32700);
}

// holds: SES-05
#[actix_rt::test]
async fn without_a_session_there_is_only_initialize() {
    let front = start(|_| {});
    let no_session = [
        PING,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}]"#,
    ];
    for body in no_session {
        assert_eq!(
            send_request(&front, "POST /demo/mcp", POLITE, body).await.status,
            400,
            "{body}"
        );
    }
    let events = "Accept: text/event-stream\r\n";
    assert_eq!(send_request(&front, "GET /demo/mcp", events, "").await.status, 400);
    assert_eq!(send_request(&front, "DELETE /demo/mcp", "", "").await.status, 400);
}

// holds: SES-06, SES-13, OLD-04
#[actix_rt::test]
async fn an_unknown_session_is_404_for_every_method() {
    let front = start(|_| {});
    for id in ["3f0c2a1e-unknown", "with blank", "\u{7f}", ""] {
        let session = format!("mCP-sESSION-iD: {id}\r\n");
        let headers = format!("{POLITE}{session}");
        for (line, body) in [("POST", PING), ("GET", ""), ("DELETE", "")] {
            let reply = send_request(&front, &format!("{line} /demo/mcp"), &headers, body).await;
            // The parser rejects a control character in a header value.
            assert_eq!(reply.status, if id == "\u{7f}" { 400 } else { 404 }, "{line} {id:?}");
            if id != "\u{7f}" {
                assert_eq!(reply.code_without_id(), -32001);
            }
        }
    }
    for query in ["", "?session=", "?session=unknown", "?sessionid=unknown"] {
        let reply =
            send_request(&front, &format!("POST /demo/messages{query}"), POLITE, PING).await;
        assert_eq!(reply.status, 404, "{query}");
    }
}

// holds: SES-11, VER-03
#[actix_rt::test]
async fn initialize_within_a_session_is_refused_and_so_is_an_unknown_revision() {
    let front = start(|_| {});
    let initialize = r#"{"jsonrpc":"2.0","id":7,"method":"initialize","params":{}}"#;
    let headers = format!("{POLITE}Mcp-Session-Id: some\r\n");
    let reply = send_request(&front, "POST /demo/mcp", &headers, initialize).await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains(r#""id":7"#) && reply.body.contains("-32600"), "{}", reply.body);

    for (version, status) in
        [("nope", 400), ("2026-07-28", 400), ("2025-06-18", 404), ("DRAFT-2026-v1", 404)]
    {
        let headers = format!("{headers}MCP-Protocol-Version: {version}\r\n");
        for (line, body) in [("POST", PING), ("GET", ""), ("DELETE", "")] {
            let reply = send_request(&front, &format!("{line} /demo/mcp"), &headers, body).await;
            assert_eq!(reply.status, status, "{line} {version}");
        }
    }
}

// holds: GET-02, OLD-07
#[actix_rt::test]
async fn other_methods_are_told_which_ones_there_are() {
    let front = start(|_| {});
    for (line, allow) in [
        ("PUT /demo/mcp", "GET, POST, DELETE"),
        ("PATCH /demo/mcp", "GET, POST, DELETE"),
        ("POST /demo/sse", "GET"),
        ("DELETE /demo/sse", "GET"),
        ("GET /demo/messages?session=x", "POST"),
    ] {
        let reply = send_request(&front, line, POLITE, "{}").await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some(allow)), "{line}");
    }
}

#[actix_rt::test]
async fn unknown_tenants_and_paths_are_404() {
    let front = start(|_| {});
    for path in ["/", "/mcp", "/nobody/mcp", "/demo", "/demo/mcp/", "/demo/other", "/Demo/mcp"] {
        let reply = send_request(&front, &format!("POST {path}"), POLITE, PING).await;
        assert_eq!(reply.status, 404, "{path}");
        assert_eq!(
            send_request(&front, &format!("OPTIONS {path}"), "", "").await.status,
            404,
            "{path}"
        );
        let message = "a tenant's endpoint is /TENANT/mcp (Streamable HTTP) or /TENANT/sse";
        assert!(reply.body.contains(message) && !reply.body.contains("picky"), "{}", reply.body);
    }
    let behind = start(|settings| settings.public_url = Some("https://a.example/mcp-gate/".into()));
    let headers = "Host: a.example\r\n";
    let reply = send_request(&behind, "GET /demo/mcp/", headers, "").await;
    assert!(reply.body.contains("/mcp-gate/TENANT/mcp"), "{}", reply.body);
}

// holds: SEC-01, SEC-02, CORS-05
#[actix_rt::test]
async fn a_foreign_origin_is_403_on_every_method_and_endpoint() {
    let front = start(|_| {});
    let foreign = ["http://evil.example", "null", "http://localhost.evil.example", "nonsense"];
    for origin in foreign {
        let headers = format!("{POLITE}Origin: {origin}\r\n");
        for path in ["/demo/mcp", "/demo/sse", "/demo/messages?session=x", "/nobody/mcp", "/"] {
            for method in ["GET", "POST", "DELETE", "OPTIONS", "PUT"] {
                let reply = send_request(&front, &format!("{method} {path}"), &headers, "").await;
                assert_eq!(reply.status, 403, "{method} {path} from {origin}");
                // The page may read why, and a browser sends nothing after such a preflight.
                assert_eq!(reply.header("access-control-allow-origin"), Some(origin));
                assert_eq!(reply.header("access-control-allow-methods"), None);
                assert_eq!(reply.header("access-control-allow-headers"), None);
                assert_eq!(reply.header("access-control-allow-credentials"), None);
                assert_eq!(reply.header("vary"), Some("Origin"));
            }
        }
    }
}

// holds: SEC-03
#[actix_rt::test]
async fn a_foreign_host_is_403_and_two_hosts_are_400() {
    let front = start(|_| {});
    let port = front.address().port();
    for (host, status) in [
        ("evil.example".to_owned(), 403),
        (format!("evil.example:{port}"), 403),
        (format!("localhost:{port}"), 400),
        ("127.0.0.1".to_owned(), 400),
        ("[::1]:80".to_owned(), 400),
        ("localhost\r\nHost: evil.example".to_owned(), 400),
    ] {
        let headers = format!("{POLITE}Host: {host}\r\n");
        assert_eq!(
            send_request(&front, "POST /demo/mcp", &headers, PING).await.status,
            status,
            "{host}"
        );
    }
    let absolute = send_request(&front, "POST http://evil.example/demo/mcp", POLITE, PING).await;
    assert_eq!(absolute.status, 403);
}

// holds: CORS-01, CORS-02, CORS-03
#[actix_rt::test]
async fn a_preflight_lists_what_pages_may_do() {
    let front = start(|_| {});
    let headers = "Origin: http://localhost:6274\r\nAccess-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: content-type,authorization,mcp-session-id,\
         mcp-protocol-version,last-event-id,mcp-param-region,x-evil\r\n";
    let reply = send_request(&front, "OPTIONS /demo/mcp", headers, "").await;
    assert_eq!(reply.status, 204);
    let header = |name| reply.header(name).unwrap_or_default().to_lowercase();
    assert_eq!(header("access-control-allow-origin"), "http://localhost:6274");
    assert_eq!(header("access-control-allow-methods"), "get, post, delete, options");
    assert_eq!(header("vary"), "origin");
    assert_eq!(header("access-control-max-age"), "7200");
    let allowed = header("access-control-allow-headers");
    let allowed: Vec<_> = allowed.split(", ").collect();
    for name in [
        "content-type",
        "authorization",
        "accept",
        "mcp-session-id",
        "mcp-protocol-version",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-param-region",
    ] {
        assert!(allowed.contains(&name), "{name} in {allowed:?}");
    }
    assert!(!allowed.contains(&"x-evil"));
}

// holds: CORS-04, CORS-05
#[actix_rt::test]
async fn a_page_may_read_errors_too_and_each_tenant_has_its_own_list() {
    let front = start(|_| {});
    let headers = format!("{POLITE}Origin: https://picky.example\r\n");
    for (line, status) in [
        ("POST /picky/mcp", 400),
        ("PUT /picky/mcp", 405),
        ("POST /picky/messages", 404),
        ("POST /picky/sse", 405),
    ] {
        let reply = send_request(&front, line, &headers, PING).await;
        assert_eq!(reply.status, status, "{line}");
        assert_eq!(reply.header("access-control-allow-origin"), Some("https://picky.example"));
        let exposed = reply.header("access-control-expose-headers").unwrap();
        for name in ["Mcp-Session-Id", "MCP-Protocol-Version", "WWW-Authenticate"] {
            assert!(exposed.contains(name), "{exposed}");
        }
        assert_eq!(reply.header("vary"), Some("Origin"));
    }
    assert_eq!(send_request(&front, "POST /demo/mcp", &headers, PING).await.status, 403);
}

#[actix_rt::test]
async fn a_header_that_decides_may_come_once() {
    let front = start(|_| {});
    for twice in [
        "Mcp-Session-Id: a\r\nMcp-Session-Id: a\r\n",
        "MCP-Protocol-Version: 2025-06-18\r\nmcp-protocol-version: 2025-03-26\r\n",
        "Origin: http://localhost\r\nOrigin: http://localhost\r\n",
        "Last-Event-ID: 1\r\nLast-Event-ID: 2\r\n",
        "Content-Type: text/plain\r\n",
    ] {
        let reply = send_request(&front, "POST /demo/mcp", &format!("{POLITE}{twice}"), PING).await;
        assert_eq!(reply.status, 400, "{twice}");
        assert_eq!(reply.code_without_id(), -32600);
    }
}

#[actix_rt::test]
async fn framing_that_two_readers_could_read_differently_is_400() {
    let front = start(|_| {});
    for framing in [
        "Content-Length: 40\r\nContent-Length: 41\r\n",
        "Content-Length: 40\r\nContent-Length: 40\r\n",
        "Content-Length: 40\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length: +40\r\n",
        "Content-Length: -1\r\n",
        "Content-Length : 40\r\n",
    ] {
        let mut wire = Wire::open(&front).await;
        let head = request("POST /demo/mcp", &format!("{POLITE}{framing}"), "");
        wire.send(format!("{head}{PING}POST /demo/mcp HTTP/1.1\r\n\r\n")).await;
        let received = wire.receive_until_close().await;
        assert!(received.starts_with("HTTP/1.1 400"), "{framing:?}: {received}");
        assert_eq!(received.matches("HTTP/1.1").count(), 1, "{framing:?}: {received}");
    }
}

// holds: POST-19
#[actix_rt::test]
async fn headers_have_a_bound_and_so_has_their_number() {
    let front = start(|settings| settings.header_bytes_max = 4_000);
    let long = format!("{POLITE}X-Long: {}\r\n", "x".repeat(4_000));
    let reply = send_request(&front, "POST /demo/mcp", &long, PING).await;
    assert_eq!((reply.status, reply.code_without_id()), (431, -32600));
    let many: String = (0..200).map(|n| format!("X-{n}: x\r\n")).collect();
    assert_eq!(send_request(&front, "POST /demo/mcp", &many, "").await.status, 431);
}

// holds: POST-19
#[actix_rt::test]
async fn a_body_beyond_the_bound_is_413_and_one_at_it_is_read() {
    let front = start(|settings| settings.body_bytes_max = 1_000);
    for (length, status) in [(1_000, 400), (1_001, 413)] {
        let body = format!("\"{}\"", "x".repeat(length - 2));
        assert_eq!(send_request(&front, "POST /demo/mcp", POLITE, &body).await.status, status);
        let head =
            request("POST /demo/mcp", &format!("{POLITE}Transfer-Encoding: chunked\r\n"), "");
        let mut wire = Wire::open(&front).await;
        wire.send(head).await;
        for piece in body.as_bytes().chunks(300) {
            wire.send(format!("{:x}\r\n", piece.len())).await;
            wire.send(piece).await;
            wire.send("\r\n").await;
        }
        wire.send("0\r\n\r\n").await;
        assert_eq!(wire.receive().await.status, status, "chunked, {length}");
    }
}

/// Without a session no client is identified, and only `initialize` is accepted.
#[actix_rt::test]
async fn without_a_session_a_body_has_a_smaller_bound() {
    let front = start(|_| {});
    let most = 128 << 10;
    let in_session = format!("{POLITE}Mcp-Session-Id: unknown\r\n");
    for (headers, length, status) in
        [(POLITE, most, 400), (POLITE, most + 1, 413), (&in_session, most + 1, 404)]
    {
        let short = r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":""}}"#;
        let text = "x".repeat(length - short.len());
        let body = short.replace(r#""""#, &format!("\"{text}\""));
        assert_eq!(body.len(), length);
        let reply = send_request(&front, "POST /demo/mcp", headers, &body).await;
        assert_eq!(reply.status, status, "{length}");
        assert_eq!(
            reply.body.contains("131072 bytes (front.initialize_body_bytes_max)"),
            status == 413,
            "{}",
            reply.body
        );
        // The body in chunks. The front keeps at most the limit.
        let mut wire = Wire::open(&front).await;
        let chunked = format!("{headers}Transfer-Encoding: chunked\r\n");
        wire.send(request("POST /demo/mcp", &chunked, "")).await;
        for piece in body.as_bytes().chunks(50_000) {
            wire.send(format!("{:x}\r\n", piece.len())).await;
            wire.send(piece).await;
            wire.send("\r\n").await;
        }
        wire.send("0\r\n\r\n").await;
        assert_eq!(wire.receive().await.status, status, "chunked, {length}");
    }
    // An `initialize` with an icon of the client is below the limit.
    let icon = "x".repeat(100_000);
    let initialize = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{{"name":"c","version":"1","icons":[{{"src":"data:image/png;base64,{icon}"}}]}}}}}}"#
    );
    assert_eq!(send_request(&front, "POST /demo/mcp", POLITE, &initialize).await.status, 200);
}

// holds: POST-19
/// A client that reads only after it has written everything still receives the answer.
#[actix_rt::test]
async fn a_client_that_sends_64_mib_reads_413_and_no_reset() {
    let front = start(|_| {});
    let bytes = 64 << 20;
    let piece = vec![b'x'; 1 << 20];
    let mut wire = Wire::open(&front).await;
    wire.send(request("POST /demo/mcp", &format!("{POLITE}Content-Length: {bytes}\r\n"), "")).await;
    for _ in 0..64 {
        wire.send(&piece).await;
    }
    let reply = wire.receive().await;
    assert_eq!((reply.status, reply.code_without_id()), (413, -32600));
    assert_eq!(reply.header("connection"), Some("close"));

    let mut wire = Wire::open(&front).await;
    let chunked = format!("{POLITE}Transfer-Encoding: chunked\r\n");
    wire.send(request("POST /demo/mcp", &chunked, "")).await;
    for _ in 0..64 {
        wire.send(format!("{:x}\r\n", piece.len())).await;
        wire.send(&piece).await;
        wire.send("\r\n").await;
    }
    assert_eq!(wire.receive().await.status, 413);
}

#[actix_rt::test]
async fn a_body_that_never_comes_is_408_also_behind_another_request() {
    let front = start(|settings| settings.body_timeout_secs = 1);
    let slow = request("POST /demo/mcp", &format!("{POLITE}Content-Length: 40\r\n"), "");
    let mut wire = Wire::open(&front).await;
    wire.send(format!("{slow}{{")).await;
    assert_eq!(wire.receive().await.status, 408);

    let mut pipelined = Wire::open(&front).await;
    pipelined.send(format!("{}{slow}", request("POST /demo/mcp", POLITE, PING))).await;
    assert_eq!(pipelined.receive().await.status, 400);
    assert_eq!(pipelined.receive().await.status, 408);
}

#[actix_rt::test]
async fn a_head_that_never_ends_is_408() {
    let front = start(|settings| settings.head_timeout_secs = 1);
    let half = "POST /demo/mcp HTTP/1.1\r\nHost: localhost\r\n";
    // Lines without a character may precede a request.
    for sent in [half, "P", "\r", "\n\n", &"\r\n".repeat(100)] {
        let mut wire = Wire::open(&front).await;
        let (lasted, seen) = dripped(&mut wire, sent).await;
        assert!(seen.starts_with("HTTP/1.1 408"), "{sent:?}: {seen:?}");
        assert!((900..3_000).contains(&lasted.as_millis()), "{sent:?}: {lasted:?}");
    }
}

/// A client may be busy between its connect and its first request, as others are between two requests.
#[actix_rt::test]
async fn a_new_connection_may_be_silent_for_as_long_as_an_idle_one() {
    let front = start(|settings| (settings.head_timeout_secs, settings.keep_alive_secs) = (1, 5));
    let began = std::time::Instant::now();
    let mut silent = Wire::open(&front).await;
    let (mut late, mut half) = (Wire::open(&front).await, Wire::open(&front).await);
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    late.send(request("POST /demo/mcp", POLITE, PING)).await;
    assert_eq!(late.receive().await.status, 400);
    // Its first head has its time from its first byte.
    let (lasted, seen) = dripped(&mut half, "P").await;
    assert!(seen.starts_with("HTTP/1.1 408"), "{seen:?}");
    assert!((900..3_000).contains(&lasted.as_millis()), "{lasted:?}");
    assert_eq!(silent.receive_until_close().await, "", "nothing was asked");
    let lasted = began.elapsed().as_millis();
    assert!((4_900..9_000).contains(&lasted), "{lasted} ms");
}

#[actix_rt::test]
async fn without_idle_connections_a_new_one_still_has_the_time_of_a_head() {
    let front = start(|settings| (settings.head_timeout_secs, settings.keep_alive_secs) = (1, 0));
    let began = std::time::Instant::now();
    let mut silent = Wire::open(&front).await;
    let mut late = Wire::open(&front).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    late.send(request("POST /demo/mcp", POLITE, PING)).await;
    assert_eq!(late.receive().await.status, 400);
    assert_eq!(silent.receive_until_close().await, "");
    assert!((900..4_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
}

/// Writes `sent`, then one more byte of it each 100 ms. Returns how long the connection lasted
/// and what was received.
async fn dripped(wire: &mut Wire, sent: &str) -> (Duration, String) {
    let began = std::time::Instant::now();
    let mut seen = Vec::new();
    let mut rest = sent.bytes();
    loop {
        if let Some(byte) = rest.next() {
            let _ = wire.0.write_all(&[byte]).await;
        }
        let mut piece = [0; 4096];
        match tokio::time::timeout(Duration::from_millis(100), wire.0.read(&mut piece)).await {
            Err(_) => assert!(began.elapsed() < Duration::from_secs(10), "still open: {seen:?}"),
            Ok(Ok(0) | Err(_)) => {
                return (began.elapsed(), String::from_utf8(seen).unwrap());
            }
            Ok(Ok(count)) => seen.extend_from_slice(&piece[..count]),
        }
    }
}

#[actix_rt::test]
async fn a_later_head_that_never_ends_is_408_too() {
    let front = start(|settings| settings.head_timeout_secs = 1);
    let post = request("POST /demo/mcp", POLITE, PING);
    let get = request("GET /nowhere", "", "");
    let drip = "POST /demo/mcp HTTP/1.1\r\nHost: localhost\r\nX: ".to_owned() + &"x".repeat(200);
    for (answered, sent) in
        [(&post, "P"), (&get, "G"), (&post, &drip), (&get, "\r"), (&get, "\n\n")]
    {
        let mut wire = Wire::open(&front).await;
        for _ in 0..2 {
            wire.send(answered).await;
            wire.receive().await;
        }
        let (lasted, seen) = dripped(&mut wire, sent).await;
        assert!(seen.starts_with("HTTP/1.1 408"), "{sent:?}: {seen:?}");
        assert!((900..3_000).contains(&lasted.as_millis()), "{sent:?}: {lasted:?}");
    }
}

#[actix_rt::test]
async fn a_pipelined_head_that_never_ends_is_408_too() {
    let front = start(|settings| settings.head_timeout_secs = 1);
    let post = request("POST /demo/mcp", POLITE, PING);
    for half in ["P", "POST /demo/mcp HTTP/1.1\r\nHost: localhost\r\n"] {
        for ahead in [post.clone(), post.repeat(2), request("GET /nowhere", "", "").repeat(3)] {
            let mut wire = Wire::open(&front).await;
            let (lasted, seen) = {
                wire.send(format!("{ahead}{half}")).await;
                dripped(&mut wire, "").await
            };
            assert!(seen.contains("HTTP/1.1 408"), "{ahead}{half}: {seen:?}");
            assert!((900..3_000).contains(&lasted.as_millis()), "{lasted:?}");
        }
    }
}

#[actix_rt::test]
async fn a_body_a_stream_and_an_idle_connection_may_last_longer_than_a_head() {
    let front = start(|settings| settings.head_timeout_secs = 1);
    let mut wire = Wire::open(&front).await;
    let head =
        request("POST /demo/mcp", &format!("{POLITE}Content-Length: {}\r\n", PING.len()), "");
    for _ in 0..2 {
        // In one read with the end of the head, and in later ones.
        wire.send(format!("{head}{}", &PING[..1])).await;
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        wire.send(&PING[1..]).await;
        assert_eq!(wire.receive().await.status, 400);
        tokio::time::sleep(Duration::from_millis(1_300)).await;
    }
    // A head in two pieces, in time.
    wire.send(&head[..20]).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    wire.send(format!("{}{PING}", &head[20..])).await;
    assert_eq!(wire.receive().await.status, 400);
}

#[actix_rt::test]
async fn a_connection_outlives_a_refusal_whose_body_was_read() {
    let front = start(|_| {});
    let mut wire = Wire::open(&front).await;
    for _ in 0..3 {
        wire.send(request("POST /demo/mcp", POLITE, PING)).await;
        let reply = wire.receive().await;
        assert_eq!((reply.status, reply.header("connection")), (400, None));
    }
    front.drain();
    wire.send(request("POST /demo/mcp", POLITE, PING)).await;
    assert_eq!(wire.receive().await.header("connection"), Some("close"), "the node is draining");
}

#[actix_rt::test]
async fn an_idle_server_stops_at_once_and_frees_its_port() {
    let front = start(|_| {});
    let address = front.address();
    let _idle = Wire::open(&front).await;
    tokio::time::timeout(Duration::from_secs(5), front.stop(Duration::from_secs(4))).await.unwrap();
    assert!(std::net::TcpListener::bind(address).is_ok());
}
