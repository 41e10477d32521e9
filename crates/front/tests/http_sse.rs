//! Sessions over HTTP+SSE, the transport of 2024-11-05.

use crate::kit::session::{Events, call, initialize, initialized, url};
use crate::kit::{node, parrot};
use front::Running;
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};

/// The endpoint that a new stream names, and the stream.
async fn open(running: &Running) -> (String, Events) {
    let request = Client::new().get(url(running, "/demo/sse"));
    let response = request.header("Accept", "text/event-stream").send().await.unwrap();
    let mut events = Events::of(response);
    let first = events.next().await.unwrap().unwrap();
    assert_eq!(first.name.as_deref(), Some("endpoint"));
    (first.data.unwrap(), events)
}

async fn post(running: &Running, endpoint: &str, message: &Value) -> Response {
    Client::new().post(url(running, endpoint)).json(message).send().await.unwrap()
}

// holds: OLD-01, OLD-02, OLD-03, OLD-09
#[actix_rt::test]
async fn everything_is_accepted_and_answered_on_the_stream() {
    let node = node(parrot::backends(), |_| {});
    for revision in ["2024-11-05", "2025-06-18"] {
        let (endpoint, mut events) = open(&node.running).await;
        assert!(endpoint.starts_with("/demo/messages?session="), "{endpoint}");
        let accepted = post(&node.running, &endpoint, &initialize(revision)).await;
        assert_eq!(accepted.status(), StatusCode::ACCEPTED);
        let event = events.message().await;
        assert_eq!((event.name.as_deref(), event.id.as_deref()), (Some("message"), None));
        assert_eq!(event.json()["result"]["protocolVersion"], revision);
        assert_eq!(post(&node.running, &endpoint, &initialized()).await.status(), 202);
        assert_eq!(
            post(&node.running, &endpoint, &call(1, "steps", json!({}))).await.status(),
            202
        );
        for _ in 1..=3 {
            assert_eq!(events.message().await.json()["method"], "notifications/progress");
        }
        assert_eq!(events.message().await.json()["id"], 1);
    }
}

// holds: OLD-04
#[actix_rt::test]
async fn a_session_ends_with_its_stream() {
    let node = node(parrot::backends(), |_| {});
    let (endpoint, mut events) = open(&node.running).await;
    post(&node.running, &endpoint, &initialize("2024-11-05")).await;
    events.message().await;
    drop(events);
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    // The kernel reports the broken connection late; a longer wait would time the test out.
    while post(&node.running, &endpoint, &ping).await.status() != 404 {
        tokio::task::yield_now().await;
    }
}

#[actix_rt::test]
async fn the_endpoint_lies_below_the_public_urls_path() {
    let node = node(parrot::backends(), |settings| {
        settings.public_url = Some("https://gate.example/mcp/".to_owned());
    });
    let (endpoint, _events) = open(&node.running).await;
    assert!(endpoint.starts_with("/mcp/demo/messages?session="), "{endpoint}");
}
