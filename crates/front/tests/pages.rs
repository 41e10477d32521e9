//! What a page in a browser may send, and what it may read of a refusal.

use crate::kit::{POLITE, send_request, session::initialize, start};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

#[actix_rt::test]
async fn a_page_may_read_why_it_is_refused() {
    let front = start(|settings| {
        settings.initialize_body_bytes_max = 10;
        settings.header_bytes_max = 2_000;
    });
    let origin = "http://localhost:6274";
    let big = format!("{POLITE}X-Big: {}\r\n", "x".repeat(2_000));
    for (line, headers, status) in [
        ("POST /nobody/mcp", POLITE, 404),
        ("POST /demo/mcp/", POLITE, 404),
        ("POST /demo/mcp", POLITE, 413),
        ("POST /demo/mcp", "Content-Type: text/plain\r\n", 415),
        ("POST /demo/mcp", &big, 431),
        ("POST /demo/mcp#x", POLITE, 400),
        ("POST /demo/mcp", "Host: evil.example\r\n", 403),
    ] {
        let headers = format!("{headers}Origin: {origin}\r\n");
        let reply = send_request(&front, line, &headers, PING).await;
        assert_eq!(reply.status, status, "{line} {headers}");
        assert_eq!(reply.header("access-control-allow-origin"), Some(origin), "{line} {headers}");
    }
    // A browser asks first. The answer does not reveal whether there is such a tenant.
    let headers = format!("Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n");
    let mut answers = Vec::new();
    for path in ["/demo/mcp", "/nobody/mcp", "/demo/mcp/"] {
        let reply = send_request(&front, &format!("OPTIONS {path}"), &headers, "").await;
        assert_eq!(reply.status, 204, "{path}");
        answers.push(reply.head.lines().filter(|l| !l.starts_with("date")).collect::<String>());
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
}

#[actix_rt::test]
async fn a_page_that_creates_sessions_too_fast_may_read_why() {
    let front = start(|settings| {
        settings.sessions_per_address_burst = 1;
        settings.trusted_proxies = vec!["127.0.0.1".into()];
    });
    let headers = format!("{POLITE}Origin: http://localhost:1\r\nX-Forwarded-For: 203.0.113.7\r\n");
    let body = initialize("2025-06-18").to_string();
    let mut last = send_request(&front, "POST /demo/mcp", &headers, &body).await;
    for _ in 0..5 {
        if last.status == 429 {
            break;
        }
        last = send_request(&front, "POST /demo/mcp", &headers, &body).await;
    }
    assert_eq!(last.status, 429);
    assert_eq!(last.header("access-control-allow-origin"), Some("http://localhost:1"));
    assert!(last.header("access-control-expose-headers").unwrap().contains("Retry-After"));
}

#[actix_rt::test]
async fn pages_may_send_headers_of_tracing_and_those_that_are_configured() {
    let allowed = |front: front::Running| async move {
        let headers = "Origin: http://localhost:6274\r\nAccess-Control-Request-Method: POST\r\n\
             Access-Control-Request-Headers: traceparent,x-request-id\r\n";
        let reply = send_request(&front, "OPTIONS /demo/mcp", headers, "").await;
        let allowed = reply.header("access-control-allow-headers").unwrap().to_owned();
        ["traceparent", "tracestate", "baggage", "x-request-id"]
            .map(|name| allowed.split(", ").any(|allowed| allowed == name))
    };
    assert_eq!(allowed(start(|_| {})).await, [true, true, true, false]);
    let configured = start(|settings| settings.cors_headers = vec!["X-Request-Id".into()]);
    assert_eq!(allowed(configured).await, [false, false, false, true]);
}
