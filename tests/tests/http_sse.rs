//! HTTP+SSE of 2024-11-05: one stream for each session, and an endpoint for the client's messages.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Response;
use serde_json::{Value, json};
use tests::check;
use tests::recorded::reaches;
use tests::sse::{Events, PATIENCE};
use tests::{Node, Setup, processes};

// holds: OLD-01, OLD-02, OLD-03, RPC-07
#[tokio::test]
async fn a_client_of_2024_is_served_over_one_stream() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        let mut old = Old::open(&node).await?;
        let welcome = old.initialize("2024-11-05", json!({})).await?;
        ensure!(welcome["protocolVersion"] == "2024-11-05", "{welcome}");
        let tools = old.request(2, "tools/list", json!({})).await?;
        ensure!(tools["result"]["tools"][0]["name"] == "test_simple_text", "{tools}");
        let meta = json!({"progressToken": "p"});
        old.say(json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call",
            "params": {"name": "rh_count", "arguments": {"n": 3}, "_meta": meta}}))
            .await?;
        let mut steps = Vec::new();
        let word = loop {
            let message = old.hear().await?;
            match message["method"].as_str() {
                Some("notifications/progress") => {
                    steps.extend(message["params"]["progress"].as_f64())
                }
                Some(_) => {}
                None => break message,
            }
        };
        ensure!(steps == [1.0, 2.0, 3.0] && word["id"] == "c", "{steps:?} {word}");
    }
    Ok(())
}

/// The POST of a request is over long before its answer.
#[tokio::test]
async fn the_acceptance_of_a_request_is_no_observation_of_its_duration() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let mut old = Old::open(&node).await?;
    old.initialize("2024-11-05", json!({})).await?;
    old.request(2, "tools/list", json!({})).await?;
    old.say(json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})).await?;
    let count = |method: &str| {
        let labels = format!("{{mcp_method_name=\"{method}\",error_type=\"none\"}}");
        format!("mcp_server_operation_duration_seconds_count{labels}")
    };
    // A notification has no answer.
    let told = count("notifications/roots/list_changed");
    reaches(&node, &told, |count| count == 1.0).await?;
    ensure!(node.metric(&count("tools/list")).await?.unwrap_or(0.0) == 0.0);
    Ok(())
}

// holds: OLD-03
#[tokio::test]
async fn its_events_are_messages_and_carry_no_ids_nor_empty_data() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let mut old = Old::open(&node).await?;
    old.initialize("2024-11-05", json!({})).await?;
    old.say(
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "rh_count",
        "arguments": {"n": 3}, "_meta": {"progressToken": 1}}}),
    )
    .await?;
    loop {
        let block = old.stream.next().await?.context("the stream ended")?;
        let Some(message) = block.message() else {
            ensure!(block.is_comment(), "{block:?}");
            continue;
        };
        ensure!(block.event.as_deref().is_none_or(|event| event == "message"), "{block:?}");
        if message["id"] == 2 {
            return Ok(());
        }
    }
}

// holds: OLD-03
#[tokio::test]
async fn the_server_asks_and_is_answered_over_it() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        let mut old = Old::open(&node).await?;
        old.initialize("2024-11-05", json!({"sampling": {}})).await?;
        old.say(json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "test_sampling", "arguments": {"prompt": "?"}}}))
            .await?;
        let question = old.hear().await?;
        ensure!(question["method"] == "sampling/createMessage", "{question}");
        let content = json!({"type": "text", "text": "forty-two"});
        old.say(json!({"jsonrpc": "2.0", "id": question["id"],
            "result": {"role": "assistant", "model": "m", "content": content}}))
            .await?;
        let word = old.hear().await?;
        ensure!(word["result"]["content"][0]["text"] == "LLM response: forty-two", "{word}");
    }
    Ok(())
}

// holds: OLD-09, VER-05
#[tokio::test]
async fn newer_revisions_are_negotiated_without_headers() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    for revision in ["2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut old = Old::open(&node).await?;
        let welcome = old.initialize(revision, json!({})).await?;
        ensure!(welcome["protocolVersion"] == revision, "{welcome}");
        let pong = old.request(2, "ping", json!({})).await?;
        ensure!(pong["result"] == json!({}), "{pong}");
    }
    Ok(())
}

// holds: OLD-04
#[tokio::test]
async fn closing_the_stream_ends_the_session_and_its_server() -> Result<()> {
    let mark = processes::mark();
    let node = Node::start(&Setup::fixture().env(processes::VARIABLE, &mark))?;
    let mut old = Old::open(&node).await?;
    old.initialize("2024-11-05", json!({})).await?;
    let endpoint = old.endpoint.clone();
    drop(old);
    let until = tokio::time::Instant::now() + PATIENCE;
    let ping = json!({"jsonrpc": "2.0", "id": 3, "method": "ping"});
    loop {
        let response = reqwest::Client::new().post(&endpoint).json(&ping).send().await?;
        if response.status() == 404 {
            break;
        }
        ensure!(tokio::time::Instant::now() < until, "still {}", response.status());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    processes::all_gone(&mark, Some(node.pid()), PATIENCE).await
}

// holds: OLD-04, OLD-02
#[tokio::test]
async fn an_unknown_session_is_404() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let ping = json!({"jsonrpc": "2.0", "id": 3, "method": "ping"});
    for query in
        ["", "?session=", "?session=nobody", "?session=00000000-0000-4000-8000-000000000000"]
    {
        let endpoint = format!("{}/demo/messages{query}", node.base);
        let response = reqwest::Client::new().post(&endpoint).json(&ping).send().await?;
        ensure!(response.status() == 404, "{query}: {}", response.status());
    }
    Ok(())
}

// holds: OLD-06, OLD-07, GET-02
#[tokio::test]
async fn clients_that_probe_for_the_newer_transport_find_their_way_back() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "s", "version": "1"}});
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let post = reqwest::Client::new().post(format!("{}/demo/sse", node.base));
    let post = post.header("accept", "application/json, text/event-stream").json(&initialize);
    let response = post.send().await?;
    check::status(&response, 405)?;
    ensure!(check::header(&response, "allow")?.contains("GET"));
    // The newer endpoint is available as well.
    tests::mcp::Client::open(node.demo(), "2025-11-25").await?.is_well().await
}

// holds: OLD-10
#[tokio::test]
async fn nothing_is_resumed() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let mut first = Old::open(&node).await?;
    first.initialize("2024-11-05", json!({})).await?;
    let get = reqwest::Client::new().get(format!("{}/demo/sse", node.base));
    let get = get.header("accept", "text/event-stream").header("last-event-id", "1");
    let mut again = Events::of(get.send().await?)?;
    let block = again.next().await?.context("nothing came")?;
    ensure!(block.event.as_deref() == Some("endpoint"), "{block:?}");
    let endpoint = block.data.context("no endpoint")?;
    ensure!(!first.endpoint.ends_with(&endpoint), "the same session");
    Ok(())
}

// holds: POST-09
#[tokio::test]
async fn bad_messages_are_refused_here_too() -> Result<()> {
    let node = Node::start(&Setup::demo())?;
    let mut old = Old::open(&node).await?;
    old.initialize("2024-11-05", json!({})).await?;
    for (kind, body, status) in [
        ("application/json", "{bad", 400),
        ("application/json", r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, 400),
        ("text/plain", r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, 415),
    ] {
        let post = reqwest::Client::new().post(&old.endpoint).header("content-type", kind);
        let got = post.body(body).send().await?.status();
        ensure!(got == status, "{body}: {got}");
    }
    let pong = old.request(9, "ping", json!({})).await?;
    ensure!(pong["result"] == json!({}), "{pong}");
    Ok(())
}

/// A client of 2024-11-05.
struct Old {
    http: reqwest::Client,
    stream: Events,
    endpoint: String,
}

impl Old {
    async fn open(node: &Node) -> Result<Self> {
        let http = reqwest::Client::new();
        let get = http.get(format!("{}/demo/sse", node.base)).header("accept", "text/event-stream");
        let mut stream = Events::of(get.send().await?)?;
        let block = stream.next().await?.context("nothing came")?;
        ensure!(block.event.as_deref() == Some("endpoint"), "{block:?}");
        let endpoint = block.data.context("no endpoint")?;
        let url = reqwest::Url::parse(&format!("{}/demo/sse", node.base))?.join(&endpoint)?;
        ensure!(url.as_str().starts_with(&node.base), "{endpoint} is on another origin");
        Ok(Self { http, stream, endpoint: url.into() })
    }

    async fn say(&self, message: Value) -> Result<()> {
        let response: Response = self.http.post(&self.endpoint).json(&message).send().await?;
        let status = response.status();
        ensure!(status == 202, "{status}: {}", response.text().await?);
        Ok(())
    }

    async fn hear(&mut self) -> Result<Value> {
        let (_, message) = self.stream.message().await?.context("the stream ended")?;
        Ok(message)
    }

    async fn request(&mut self, id: i64, method: &str, params: Value) -> Result<Value> {
        self.say(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await?;
        let word = self.hear().await?;
        ensure!(word["id"] == id, "{word}");
        Ok(word)
    }

    async fn initialize(&mut self, revision: &str, capabilities: Value) -> Result<Value> {
        let params = json!({"protocolVersion": revision, "capabilities": capabilities,
            "clientInfo": {"name": "scenarios", "version": "1"}});
        let word = self.request(1, "initialize", params).await?;
        self.say(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
        Ok(word["result"].clone())
    }
}
