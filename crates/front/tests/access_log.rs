//! What the access log records of each exchange.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::{Client, Method};
use serde_json::json;
use telemetry::{ExchangeRecord, Outcome};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::kit::session::{Events, Session, call, initialize, url};
use crate::kit::{access_log, handle, node, parrot, send_request, start};

/// The records so far, once there are `count`: a stream's is made when its body was dropped.
async fn records(count: usize) -> Vec<ExchangeRecord> {
    static SEEN: Mutex<Vec<ExchangeRecord>> = Mutex::new(Vec::new());
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        let seen = {
            let mut seen = SEEN.lock().unwrap();
            seen.extend(access_log().take_all());
            seen.clone()
        };
        if seen.len() >= count {
            assert_eq!(seen.len(), count, "{seen:#?}");
            return seen;
        }
        assert!(Instant::now() < until, "only {} records: {seen:#?}", seen.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Method, tool and outcome of a record.
fn outline(record: &ExchangeRecord) -> (&str, Option<&str>, Outcome) {
    let method = record.method.as_ref().map_or(record.verb, |method| method.as_str());
    (method, record.tool.as_ref().map(|tool| tool.as_str()), record.outcome)
}

#[actix_rt::test]
async fn a_call_is_recorded_with_all_that_is_known_and_without_its_payload() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-06-18").await;
    let secret = "a text that no log may hold";
    let response = session.post(&call(7, "echo", json!({ "text": secret }))).await;
    let bytes = response.bytes().await.unwrap().len() as u64;
    assert_eq!(session.delete().await.status(), 204);
    let records = records(4).await;
    let outlines: Vec<_> = records.iter().map(outline).collect();
    assert_eq!(
        outlines,
        [
            ("initialize", None, Outcome::Result),
            ("notifications/initialized", None, Outcome::Accepted),
            ("tools/call", Some("echo"), Outcome::Result),
            ("DELETE", None, Outcome::Ended),
        ]
    );
    for record in &records {
        assert_eq!(record.tenant.as_deref(), Some("demo"));
        assert_eq!(record.session.unwrap().as_str(), &session.id[..8]);
        assert_eq!(record.revision, Some("2025-06-18"), "{record:?}");
        assert_eq!(record.client.as_ref().unwrap().as_str(), "scenario/1");
        assert_eq!((record.endpoint, &*record.node, &record.owner), ("mcp", "here", &None));
        assert!(record.duration < Duration::from_secs(10));
        let all = format!("{record:?}");
        assert!(!all.contains(secret) && !all.contains(&session.id), "{all}");
    }
    let statuses: Vec<_> = records.iter().map(|record| record.status).collect();
    assert_eq!(statuses, [200, 202, 200, 204]);
    assert!(records[2].bytes_in > secret.len() as u64);
    assert_eq!(records[2].bytes_out, bytes);
    node.running.stop(Duration::ZERO).await;
}

#[actix_rt::test]
async fn errors_and_refusals_are_recorded_with_their_codes() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    session.post(&call(1, "no such tool", json!({}))).await.bytes().await.unwrap();
    session.post(&call(3, "fail", json!({}))).await.bytes().await.unwrap();
    let of_another = Session { id: "nobody's-session".into(), ..session };
    assert_eq!(of_another.post(&call(2, "echo", json!({}))).await.status(), 404);
    let reply =
        send_request(&node.running, "POST /demo/mcp", "Origin: https://evil.example\r\n", "{}");
    assert_eq!(reply.await.status, 403);
    let reply = send_request(&node.running, "GET /unknown/mcp", "", "");
    assert_eq!(reply.await.status, 404);
    let records = records(7).await;
    let seen: Vec<_> =
        records[2..].iter().map(|r| (r.tenant.as_deref(), r.outcome, r.status, r.code)).collect();
    assert_eq!(
        seen,
        [
            (Some("demo"), Outcome::Error, 200, Some(-32602)),
            (Some("demo"), Outcome::ToolError, 200, None),
            (Some("demo"), Outcome::Refused, 404, Some(-32001)),
            (Some("demo"), Outcome::Refused, 403, Some(-32600)),
            (None, Outcome::Refused, 404, Some(-32600)),
        ]
    );
    assert_eq!(records[2].tool.as_ref().unwrap().as_str(), "no such tool");
    assert_eq!(records[4].session.unwrap().as_str(), "nobody's");
    node.running.stop(Duration::ZERO).await;
}

#[actix_rt::test]
async fn a_stream_is_recorded_at_its_end_with_the_outcome_of_its_request() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    let mut events = Events::of(session.post(&call(1, "steps", json!({}))).await);
    while events.next().await.unwrap().is_some() {}
    let records = records(3).await;
    assert_eq!(outline(&records[2]), ("tools/call", Some("steps"), Outcome::Result));
    assert_eq!((records[2].status, records[2].revision), (200, Some("2025-11-25")));
    // Three notifications and the result.
    assert!(records[2].bytes_out > 300, "{}", records[2].bytes_out);
    node.running.stop(Duration::ZERO).await;
}

#[actix_rt::test]
async fn a_client_that_leaves_is_recorded_before_and_after_the_head_of_its_response() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    let stream = session.get().await;
    assert_eq!(stream.status(), 200);
    drop(stream);
    assert_eq!(outline(&records(3).await[2]), ("GET", None, Outcome::Left));
    let waiting = session.request(Method::POST).json(&call(1, "never", json!({})));
    let left = tokio::time::timeout(Duration::from_millis(50), waiting.send()).await;
    assert!(left.is_err());
    let records = records(4).await;
    assert_eq!(outline(&records[3]), ("tools/call", Some("never"), Outcome::Left));
    assert_eq!(records[3].session.unwrap().as_str(), &session.id[..8]);
    node.running.stop(Duration::ZERO).await;
}

#[actix_rt::test]
async fn the_older_transport_is_recorded_as_well() {
    let node = node(parrot::backends(), |_| {});
    let client = Client::new();
    let stream = client.get(url(&node.running, "/demo/sse")).header("Accept", "text/event-stream");
    let mut events = Events::of(stream.send().await.unwrap());
    let endpoint = events.message().await.data.unwrap();
    let message = client.post(url(&node.running, &endpoint)).json(&initialize("2024-11-05"));
    assert_eq!(message.send().await.unwrap().status(), 202);
    events.message().await;
    drop(events);
    let records = records(2).await;
    assert_eq!(outline(&records[0]), ("initialize", None, Outcome::Accepted));
    assert_eq!((records[0].endpoint, records[1].endpoint), ("messages", "sse"));
    assert_eq!(records[1].outcome, Outcome::Left);
    assert_eq!(records[0].session, records[1].session);
    node.running.stop(Duration::ZERO).await;
}

#[actix_rt::test]
async fn the_stream_of_the_older_transport_has_no_outcome_of_the_requests_that_it_answers() {
    let node = node(parrot::backends(), |_| {});
    let client = Client::new();
    let stream = client.get(url(&node.running, "/demo/sse")).header("Accept", "text/event-stream");
    let mut events = Events::of(stream.send().await.unwrap());
    let endpoint = url(&node.running, &events.message().await.data.unwrap());
    client.post(&endpoint).json(&initialize("2024-11-05")).send().await.unwrap();
    events.message().await;
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    client.post(&endpoint).json(&initialized).send().await.unwrap();
    client.post(&endpoint).json(&call(1, "no such tool", json!({}))).send().await.unwrap();
    events.message().await;
    drop(events);
    let records = records(4).await;
    assert_eq!(outline(&records[2]), ("tools/call", Some("no such tool"), Outcome::Accepted));
    assert_eq!(
        (records[3].endpoint, records[3].outcome, records[3].code),
        ("sse", Outcome::Left, None)
    );
    node.running.stop(Duration::ZERO).await;
}

#[actix_rt::test]
async fn names_that_a_client_chooses_are_short_and_cannot_disturb_the_log() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    let name = format!("x\n2026-01-01 ERROR forged\u{1b}[2J{}", "y".repeat(5_000));
    session.post(&call(1, &name, json!({}))).await.bytes().await.unwrap();
    let method = json!({ "jsonrpc": "2.0", "id": 2, "method": name });
    session.post(&method).await.bytes().await.unwrap();
    let records = records(4).await;
    for label in [records[2].tool.as_ref(), records[3].method.as_ref()] {
        let label = label.unwrap().as_str();
        assert!(label.starts_with("x?2026-01-01 ERROR forged?[2Jyyy"), "{label:?}");
        assert_eq!(label.len(), 64);
    }
    node.running.stop(Duration::ZERO).await;
}

#[actix_rt::test]
async fn each_request_over_standard_streams_is_recorded_with_its_outcome() {
    let handle = handle(parrot::backends());
    let tenant = Arc::new(tenants::Tenant::new("demo", &tenants::Settings::open()).unwrap());
    let (client, server) = tokio::io::duplex(64 << 10);
    let (read, write) = tokio::io::split(server);
    let reporting = front::Reporting { access_log: access_log().clone(), ..Default::default() };
    let grace = Duration::from_secs(1);
    let serving = front::serve_stdio(&handle, &tenant, 10_000, grace, read, write, &reporting);
    let talking = async {
        let (read, mut write) = tokio::io::split(client);
        let mut lines = BufReader::new(read).lines();
        write.write_all(format!("{}\n", initialize("2025-06-18")).as_bytes()).await.unwrap();
        lines.next_line().await.unwrap();
        for tool in ["echo", "no such tool"] {
            write.write_all(format!("{}\n", call(1, tool, json!({}))).as_bytes()).await.unwrap();
            lines.next_line().await.unwrap();
        }
        write.write_all(b"nonsense\n").await.unwrap();
        lines.next_line().await.unwrap();
    };
    let (served, ()) = tokio::join!(serving, talking);
    served.unwrap();
    let records = records(4).await;
    let outlines: Vec<_> = records.iter().map(outline).collect();
    assert_eq!(
        outlines,
        [
            ("initialize", None, Outcome::Result),
            ("tools/call", Some("echo"), Outcome::Result),
            ("tools/call", Some("no such tool"), Outcome::Error),
            ("", None, Outcome::Refused),
        ]
    );
    assert_eq!(records[1].client.as_ref().unwrap().as_str(), "scenario/1");
    assert_eq!((records[2].code, records[2].endpoint), (Some(-32602), "stdio"));
}

#[actix_rt::test]
async fn a_body_that_is_refused_before_it_is_sent_is_recorded() {
    let running = start(|settings| settings.body_bytes_max = 10);
    let headers =
        "Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 11\r\n";
    assert_eq!(send_request(&running, "POST /demo/mcp", headers, "").await.status, 413);
    let records = records(1).await;
    assert_eq!((records[0].outcome, records[0].status), (Outcome::Refused, 413));
    assert_eq!(records[0].tenant.as_deref(), Some("demo"));
    running.stop(Duration::ZERO).await;
}
