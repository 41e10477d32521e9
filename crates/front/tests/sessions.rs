//! Sessions over Streamable HTTP, tested by their responses.

use std::time::Duration;

use crate::kit::session::{Events, Session, call, initialize, url};
use crate::kit::{node, parrot};
use reqwest::{Client, Method};
use serde_json::{Value, json};

// holds: POST-08, POST-10, SES-01, SES-02, SES-07
#[actix_rt::test]
async fn a_session_is_named_once_used_and_ended() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    assert!(session.id.bytes().all(|byte| matches!(byte, 0x21..=0x7E)));

    let response = session.post(&call(1, "echo", json!({ "text": "hello" }))).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert!(!response.headers().contains_key("mcp-session-id"));
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "hello");

    assert_eq!(session.delete().await.status(), 204);
    assert_eq!(session.post(&call(2, "echo", json!({}))).await.status(), 404);
    assert_eq!(session.get().await.status(), 404);
    assert_eq!(session.delete().await.status(), 404);
}

// holds: POST-11, POST-12, POST-17
#[actix_rt::test]
async fn progress_makes_the_answer_a_stream_that_ends_with_the_response() {
    let node = node(parrot::backends(), |_| {});
    for revision in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let session = Session::begin(&node.running, revision).await;
        let mut events = Events::of(session.post(&call(1, "steps", json!({}))).await);
        for step in 1..=3 {
            let event = events.message().await;
            assert_eq!(event.name.as_deref(), Some("message"));
            assert_eq!(event.json()["params"]["progress"].as_f64(), Some(f64::from(step)));
        }
        assert_eq!(events.message().await.json()["result"]["content"][0]["text"], "stepped");
        assert_eq!(events.next().await.unwrap(), None, "{revision}");
    }
}

// holds: SSE-04
#[actix_rt::test]
async fn a_call_that_is_silent_for_long_becomes_a_primed_stream() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    let mut events = Events::of(session.post(&call(1, "slow", json!({ "millis": 600 }))).await);
    let first = events.next().await.unwrap().unwrap();
    assert_eq!((first.name, first.data.as_deref()), (None, Some("")));
    assert!(first.id.is_some() && first.retry.is_some());
    assert_eq!(events.message().await.json()["id"], 1);
    assert_eq!(events.next().await.unwrap(), None);
}

// holds: POST-16, SSE-07, SSE-09, SSE-10
#[actix_rt::test]
async fn a_call_whose_connection_is_cut_is_resumed_by_get() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    let mut events = Events::of(session.post(&call(1, "slow", json!({ "millis": 900 }))).await);
    let cursor = events.next().await.unwrap().unwrap().id.unwrap();
    drop(events);

    let resumed = session.request(Method::GET).header("Last-Event-ID", cursor).send().await;
    let mut events = Events::of(resumed.unwrap());
    assert_eq!(events.message().await.json()["result"]["content"][0]["text"], "slept");
    assert_eq!(events.next().await.unwrap(), None);

    let unknown = session.request(Method::GET).header("Last-Event-ID", "9.nonsense-1");
    assert_eq!(unknown.send().await.unwrap().status(), 400);
}

// holds: CORS-04
#[actix_rt::test]
async fn a_page_may_read_the_new_sessions_id() {
    let node = node(parrot::backends(), |_| {});
    let response = Client::new()
        .post(url(&node.running, "/demo/mcp"))
        .header("Accept", "*/*")
        .header("Origin", "http://localhost:6274")
        .json(&initialize("2025-06-18"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["access-control-allow-origin"], "http://localhost:6274");
    let exposed = response.headers()["access-control-expose-headers"].to_str().unwrap();
    assert!(exposed.to_lowercase().contains("mcp-session-id"));
    assert!(response.headers().contains_key("mcp-session-id"));
}

// holds: BAT-01, BAT-02, BAT-03, BAT-04, BAT-06
#[actix_rt::test]
async fn batches_are_answered_as_arrays_where_the_revision_has_them() {
    let node = node(parrot::backends(), |_| {});
    let ping = |id: i64| json!({ "jsonrpc": "2.0", "id": id, "method": "ping" });
    let notification = json!({ "jsonrpc": "2.0", "method": "notifications/roots/list_changed" });
    let session = Session::begin(&node.running, "2025-03-26").await;
    let response = session.post(&json!([ping(1), notification, ping(2), 7])).await;
    assert_eq!(response.status(), 200);
    let answers: Vec<Value> = response.json().await.unwrap();
    let mut ids: Vec<_> = answers.iter().map(|answer| answer["id"].as_i64()).collect();
    ids.sort_unstable();
    assert_eq!(ids, [None, Some(1), Some(2)]);
    assert_eq!(session.post(&json!([notification, notification])).await.status(), 202);
    assert_eq!(session.post(&json!([initialize("2025-03-26")])).await.status(), 400);

    let later = Session::begin(&node.running, "2025-06-18").await;
    assert_eq!(later.post(&json!([ping(1)])).await.status(), 400);
}

/// TypeScript clients of the older revisions reopen a stream only after a broken end.
#[actix_rt::test]
async fn a_stopping_node_ends_streams_as_each_revision_needs() {
    let node = node(parrot::backends(), |_| {});
    let mut streams = Vec::new();
    for revision in ["2025-11-25", "2025-06-18"] {
        let session = Session::begin(&node.running, revision).await;
        streams.push(Events::of(session.get().await));
    }
    node.handle.stop(Duration::from_secs(5)).await;
    let mut ends = Vec::new();
    for mut stream in streams {
        ends.push(loop {
            match stream.next().await {
                Ok(Some(_)) => {}
                Ok(None) => break "whole",
                Err(_) => break "broken",
            }
        });
    }
    assert_eq!(ends, ["whole", "broken"]);
    let refused = Client::new().post(url(&node.running, "/demo/mcp")).header("Accept", "*/*");
    let refused = refused.json(&initialize("2025-11-25")).send().await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "2");
    node.running.stop(Duration::from_secs(5)).await;
}

#[actix_rt::test]
async fn a_call_in_flight_delays_the_stop_no_longer_than_agreed() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    let mut events = Events::of(session.post(&call(1, "never", json!({}))).await);
    events.next().await.unwrap();
    let stop = node.running.stop(Duration::from_millis(200));
    tokio::time::timeout(Duration::from_secs(5), stop).await.expect("waited for longer");
    assert!(events.next().await.is_err(), "the stream was cut");
}

#[actix_rt::test]
async fn a_draining_server_serves_until_its_streams_have_ended_and_no_request_arrives() {
    let node = node(parrot::backends(), |_| {});
    let session = Session::begin(&node.running, "2025-11-25").await;
    let mut events = Events::of(session.post(&call(1, "slow", json!({ "millis": 700 }))).await);
    node.running.drain();
    let unused = node.running.wait_until_unused();
    tokio::pin!(unused);
    let soon = tokio::time::timeout(Duration::from_millis(100), &mut unused);
    assert!(soon.await.is_err(), "a stream is open");
    let response = session.post(&call(2, "echo", json!({}))).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["connection"], "close");
    assert_eq!(events.message().await.json()["result"]["content"][0]["text"], "slept");
    assert_eq!(events.next().await.unwrap(), None);
    tokio::time::timeout(Duration::from_secs(5), unused).await.expect("the server is still in use");
}
