//! Two nodes with one store: a client gets the same answers from both.

use std::sync::Arc;

use crate::client::Client;
use anyhow::Result;
use futures_util::StreamExt as _;
use roundhouse::native::{Call, Error, Handler, Info};
use roundhouse::{Bytes, Memory, Node, Roundhouse, Settings, Store};
use serde_json::json;

/// A server that answers every request with its node's name.
struct Named(&'static str);

impl Handler for Named {
    fn info(&self) -> Info {
        Info::new(self.0, "1").capabilities(r#"{"tools":{}}"#)
    }

    async fn call(&self, _call: Call) -> Result<Bytes, Error> {
        Ok(Bytes::from(format!(r#"{{"tools":[],"from":"{}"}}"#, self.0)))
    }
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.cluster.peers.listen = "127.0.0.1:0".into();
    settings.cluster.peers.secret = "no secret, only a test of these nodes".into();
    settings
}

async fn node(name: &'static str, store: &Arc<dyn Store>) -> Result<Node> {
    let node = Roundhouse::from_settings(settings()).store(Arc::clone(store));
    let node = node.open_tenant("acme", roundhouse::native(Named(name)));
    Ok(node.on_free_ports().start().await?)
}

async fn two() -> Result<(Node, Node)> {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    Ok((node("one", &store).await?, node("other", &store).await?))
}

#[tokio::test]
async fn a_session_of_one_node_is_served_by_the_other() -> Result<()> {
    let (one, other) = two().await?;
    let here = Client::initialize(&one.url("acme")).await?;
    let there = here.at(&other.url("acme"));
    for _ in 0..20 {
        assert_eq!(here.call("tools/list", json!({})).await?["from"], "one");
        assert_eq!(there.call("tools/list", json!({})).await?["from"], "one");
    }
    one.stop().await;
    // The session was released, and its client uses it at the other node.
    assert_eq!(there.call("tools/list", json!({})).await?["from"], "other");
    other.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_client_of_the_old_transport_may_post_to_either_node() -> Result<()> {
    let (one, other) = two().await?;
    let sse = one.url("acme").replace("/mcp", "/sse");
    let http = reqwest::Client::new();
    let response = http.get(&sse).header("accept", "text/event-stream").send().await?;
    assert_eq!(response.status(), 200);
    let (mut body, mut text) = (response.bytes_stream(), String::new());
    while !text.contains("\n\n") {
        text += std::str::from_utf8(&body.next().await.unwrap()?)?;
    }
    let endpoint = text.lines().find_map(|line| line.strip_prefix("data:")).unwrap().trim();
    let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2024-11-05", "capabilities": {},
        "clientInfo": { "name": "test", "version": "0" } } });
    let base = other.url("acme").replace("/acme/mcp", "");
    let posted = http.post(format!("{base}{endpoint}")).json(&initialize).send().await?;
    assert_eq!(posted.status(), 202);
    while !text.contains("serverInfo") {
        text += std::str::from_utf8(&body.next().await.unwrap()?)?;
    }
    assert!(text.contains(r#""name":"one""#), "{text}");
    drop(body);
    one.stop().await;
    other.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_listener_for_peers_needs_a_long_secret_and_a_store_that_they_can_see() {
    let roundhouse = Roundhouse::from_settings(settings());
    let roundhouse = roundhouse.open_tenant("acme", roundhouse::native(Named("one")));
    let refused = roundhouse.on_free_ports().start().await.unwrap_err().to_string();
    assert!(refused.contains("`cluster.listen` is set") && refused.contains("store.url"));

    for bytes in [0, 31] {
        let mut settings = settings();
        settings.cluster.peers.secret = "s".repeat(bytes);
        let roundhouse = Roundhouse::from_settings(settings).store(Arc::new(Memory::default()));
        let roundhouse = roundhouse.open_tenant("acme", roundhouse::native(Named("one")));
        let refused = roundhouse.on_free_ports().start().await.unwrap_err().to_string();
        let length = if bytes == 0 { "is missing".into() } else { format!("has {bytes} bytes") };
        assert!(refused.contains(&format!("`cluster.secret` {length}")), "{refused}");
    }
}
