//! The limits on one client's connections, bodies and sessions, which protect other clients.

use std::time::{Duration, Instant};

use front::{Running, Settings};
use tokio::io::AsyncReadExt as _;

use crate::kit::session::{Session, call, initialize};
use crate::kit::{POLITE, Reply, Wire, node, parrot, request, send_request, start};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// A POST to a tenant with a body of this length, which reaches no session.
fn post(tenant: &str, headers: &str, length: usize) -> String {
    let body = format!("\"{}\"", "x".repeat(length - 2));
    request(&format!("POST /{tenant}/mcp"), &format!("{POLITE}{headers}"), &body)
}

/// Sends all of a request but its last ten bytes.
async fn half_sent(front: &Running, whole: &str) -> Wire {
    let mut wire = Wire::open(front).await;
    wire.send(&whole[..whole.len() - 10]).await;
    wire
}

async fn is_closed(wire: &mut Wire) -> bool {
    let mut piece = [0; 100];
    let read = wire.0.read(&mut piece);
    matches!(tokio::time::timeout(Duration::from_millis(300), read).await, Ok(Ok(0) | Err(_)))
}

fn bounded_bodies(settings: &mut Settings) {
    settings.bodies_bytes_max = 400_000;
    settings.initialize_body_bytes_max = 150_000;
    settings.body_bytes_per_sec_min = 0;
}

#[actix_rt::test]
async fn bodies_of_one_tenant_leave_room_for_those_of_another() {
    let front = start(bounded_bodies);
    let whole = post("demo", "", 90_000);
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(half_sent(&front, &whole).await);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    for _ in 0..3 {
        let began = Instant::now();
        let mut wire = Wire::open(&front).await;
        wire.send(post("picky", "", 90_000)).await;
        assert_eq!(wire.receive().await.status, 400, "it was read to its end");
        assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
    }
}

#[actix_rt::test]
async fn at_the_bound_the_slowest_body_of_the_tenant_is_cut_and_a_new_one_is_read() {
    let front = start(bounded_bodies);
    let mut of_another = half_sent(&front, &post("picky", "", 90_000)).await;
    let whole = post("demo", "", 90_000);
    let mut first = half_sent(&front, &whole).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut second = half_sent(&front, &whole).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    for _ in 0..2 {
        let mut newcomer = Wire::open(&front).await;
        newcomer.send(&whole).await;
        assert_eq!(newcomer.receive().await.status, 400, "it was read to its end");
    }
    let cut = first.receive().await;
    assert_eq!((cut.status, cut.code_without_id()), (408, -32600));
    assert!(cut.body.contains("too slowly"), "{}", cut.body);
    for wire in [&mut second, &mut of_another] {
        wire.send(&whole[whole.len() - 10..]).await;
        assert_eq!(wire.receive().await.status, 400);
    }
}

#[actix_rt::test]
async fn a_tenant_without_memory_for_a_body_is_told_to_come_back() {
    let front = start(|settings| {
        bounded_bodies(settings);
        settings.bodies_bytes_max = 120_000;
    });
    // No other body of the tenant can make room: this one alone is above the maximum.
    let mut wire = Wire::open(&front).await;
    wire.send(post("demo", "", 90_000)).await;
    let refused = wire.receive().await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("2")));
    assert_eq!(refused.code_without_id(), -32000);
    let mut smaller = Wire::open(&front).await;
    smaller.send(post("demo", "", 50_000)).await;
    assert_eq!(smaller.receive().await.status, 400, "the memory was given back");
}

#[actix_rt::test]
async fn a_body_that_drips_is_408_and_a_slow_one_that_earns_its_time_is_read() {
    let front = start(|settings| {
        settings.body_grace_secs = 1;
        settings.body_bytes_per_sec_min = 1_000;
    });
    let whole = post("demo", "", 3_000);
    let head = whole.find("\r\n\r\n").unwrap() + 4;
    for (piece, status) in [(20, 408), (400, 400)] {
        let began = Instant::now();
        let mut wire = Wire::open(&front).await;
        wire.send(&whole[..head]).await;
        let mut rest = whole.as_bytes()[head..].chunks(piece);
        let reply = loop {
            if let Some(piece) = rest.next() {
                wire.send(piece).await;
            }
            let waiting = tokio::time::timeout(Duration::from_millis(200), wire.receive()).await;
            if let Ok(reply) = waiting {
                break reply;
            }
        };
        assert_eq!(reply.status, status, "{} after {:?}", reply.body, began.elapsed());
        assert_eq!(reply.body.contains("front.body_bytes_per_sec_min"), status == 408);
        assert!(
            began.elapsed() > Duration::from_secs(1) && began.elapsed() < Duration::from_secs(3)
        );
    }
}

async fn initialize_from(front: &Running, forwarded: &str) -> Reply {
    let headers = format!("{POLITE}X-Forwarded-For: {forwarded}\r\n");
    send_request(front, "POST /demo/mcp", &headers, &initialize("2025-06-18").to_string()).await
}

fn limited_rate(settings: &mut Settings) {
    settings.trusted_proxies = vec!["127.0.0.1".into()];
    settings.sessions_per_address_burst = 2;
    settings.sessions_per_address_per_sec = 1;
}

#[actix_rt::test]
async fn an_address_that_creates_sessions_too_fast_is_429_and_others_are_not() {
    let front = node(parrot::backends(), limited_rate).running;
    for _ in 0..2 {
        assert_eq!(initialize_from(&front, "203.0.113.1").await.status, 200);
    }
    // Entries that the client itself has written before the proxy's entry are ignored.
    for forwarded in ["203.0.113.1", "198.51.100.7, 203.0.113.1", "127.0.0.1,203.0.113.1:4711"] {
        let refused = initialize_from(&front, forwarded).await;
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
        let error: serde_json::Value = serde_json::from_str(&refused.body).unwrap();
        assert_eq!((&error["error"]["code"], &error["id"]), (&(-32000).into(), &0.into()));
        let headers = format!("Accept: text/event-stream\r\nX-Forwarded-For: {forwarded}\r\n");
        assert_eq!(send_request(&front, "GET /demo/sse", &headers, "").await.status, 429);
    }
    assert_eq!(initialize_from(&front, "203.0.113.2").await.status, 200);
    assert_eq!(initialize_from(&front, "[2001:db8::1]:80").await.status, 200);
}

#[actix_rt::test]
async fn a_client_whose_address_is_not_known_has_no_rate() {
    for (trusted, forwarded) in [(vec![], "203.0.113.1"), (vec!["private".into()], "unknown")] {
        let front = node(parrot::backends(), |settings| {
            limited_rate(settings);
            settings.trusted_proxies = trusted;
        });
        for _ in 0..4 {
            assert_eq!(initialize_from(&front.running, forwarded).await.status, 200);
        }
    }
}

#[actix_rt::test]
async fn without_a_free_place_the_longest_idle_connection_makes_room() {
    let front = node(parrot::backends(), |settings| settings.connections_max = 4).running;
    let mut stream = Wire::open(&front).await;
    stream.send(request("GET /demo/sse", "Accept: text/event-stream\r\n", "")).await;
    assert_eq!(stream.receive().await.status, 200);
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut wire = Wire::open(&front).await;
        wire.send(request("POST /demo/mcp", POLITE, PING)).await;
        assert_eq!(wire.receive().await.status, 400);
        idle.push(wire);
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(Wire::open(&front).await);
    }
    let newcomer = send_request(&front, "POST /demo/mcp", POLITE, PING);
    let newcomer = tokio::time::timeout(Duration::from_secs(5), newcomer).await.expect("no place");
    assert_eq!(newcomer.status, 400);
    for wire in &mut idle {
        assert!(is_closed(wire).await);
    }
    assert!(is_closed(&mut silent[0]).await);
    assert!(!is_closed(&mut stream).await, "it serves a request");
}

#[actix_rt::test]
async fn connections_with_half_a_head_make_room_when_none_is_idle() {
    let front = start(|settings| {
        settings.connections_max = 2;
        settings.head_timeout_secs = 60;
    });
    let mut half = Vec::new();
    for _ in 0..30 {
        let mut wire = Wire::open(&front).await;
        wire.send("POST /demo/mcp HTTP/1.1\r\nHos").await;
        half.push(wire);
    }
    let newcomer = send_request(&front, "POST /demo/mcp", POLITE, PING);
    let newcomer = tokio::time::timeout(Duration::from_secs(15), newcomer).await.expect("no place");
    assert_eq!(newcomer.status, 400);
}

/// Its client is slow to read, but it is not idle.
#[actix_rt::test]
async fn a_connection_whose_response_is_not_yet_read_is_not_closed() {
    let front = node(parrot::backends(), |settings| settings.connections_max = 2).running;
    let session = Session::begin(&front, "2025-06-18").await;
    let bytes = 12_000_000;
    let body = call(1, "big", serde_json::json!({ "bytes": bytes })).to_string();
    let headers = format!("{POLITE}Mcp-Session-Id: {}\r\n", session.id);
    let mut wire = Wire::open(&front).await;
    wire.send(request("POST /demo/mcp", &headers, &body)).await;
    // The response has begun.
    let mut piece = vec![0; 1 << 20];
    let mut received = wire.0.read(&mut piece).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(Wire::open(&front).await);
    }
    let newcomer = send_request(&front, "POST /demo/mcp", POLITE, PING);
    let newcomer = tokio::time::timeout(Duration::from_secs(10), newcomer).await.expect("no place");
    assert_eq!(newcomer.status, 400);
    while received < bytes {
        let read = tokio::time::timeout(Duration::from_secs(5), wire.0.read(&mut piece)).await;
        let count = read.expect("no more bytes").unwrap();
        assert!(count > 0, "closed after {received} bytes");
        received += count;
    }
}
