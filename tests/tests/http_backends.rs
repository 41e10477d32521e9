//! Servers that are reached over HTTP: a node of this program, and servers of the public SDKs. The tests
//! of `features.rs` run against such a backend as well.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tests::mcp::{Client, DRAFT, REVISIONS, final_response, mirrored};
use tests::nodes::port;
use tests::recorded::reaches;
use tests::redis::Redis;
use tests::sdk_server::Everything;
use tests::sse::PATIENCE;
use tests::{Node, Setup, check};

const NEWEST: &str = "2025-11-25";

fn text(result: &Value) -> Result<&str> {
    result["content"][0]["text"].as_str().with_context(|| format!("no text: {result}"))
}

// holds: POST-02
#[tokio::test]
async fn clients_of_every_revision_use_a_remote_server() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&Setup::in_front_of(&upstream.demo()))?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let echo = client.tool("rh_echo", json!({ "number": 7 })).await?;
        ensure!(echo["structuredContent"]["number"] == 7, "{revision}: {echo}");
        let count = json!({ "n": 3, "interval_ms": 5 });
        let mut stream =
            client.stream(client.call_with_progress("rh_count", count, json!(1))).await?;
        let messages = tests::mcp::messages(&stream.rest().await?);
        let steps: Vec<_> =
            messages.iter().filter_map(|m| m["params"]["progress"].as_f64()).collect();
        ensure!(steps == [1.0, 2.0, 3.0], "{revision}: {messages:?}");
        check::status(&client.delete().await?, 204)?;
    }
    Ok(())
}

// holds: HDR-16, HDR-01, HDR-02, HDR-10
#[tokio::test]
async fn a_server_of_the_draft_gets_the_headers_that_mirror_each_message() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&Setup::in_front_of_asking(&upstream.demo(), DRAFT))?;
    // The upstream node refuses each message whose headers are wrong or missing.
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        for (value, in_header) in [
            ("Hello", "Hello"),
            ("é", "=?base64?w6k=?="),
            (" x", "=?base64?IHg=?="),
            ("a\r\nb: c", "=?base64?YQ0KYjogYw==?="),
            ("", ""),
        ] {
            let mut sent = client.http(reqwest::Method::POST);
            let call = client.call("test_custom_header", json!({ "value": value }));
            if revision == DRAFT {
                // The client is a client of the draft as well.
                sent = sent.headers(mirrored(&call)?).header("mcp-param-value", in_header);
            }
            let answer = final_response(sent.json(&call).send().await?).await?;
            let is_error = answer["result"]["isError"] == true || answer.get("result").is_none();
            ensure!(!is_error, "{revision}, {value:?}: {answer}");
        }
        let read = json!({ "uri": "test://static-text" });
        tests::mcp::result(client.request("resources/read", read.clone()).await?)?;
        tests::mcp::result(client.request("resources/subscribe", read).await?)?;
        let prompt = json!({ "name": "test_simple_prompt" });
        tests::mcp::result(client.request("prompts/get", prompt).await?)?;
        let count = json!({ "n": 3, "interval_ms": 5 });
        let call = client.call_with_progress("rh_count", count, json!(1));
        ensure!(client.stream(call).await?.rest().await?.len() > 3, "{revision}");
        check::status(&client.delete().await?, 204)?;
    }
    let until = Instant::now() + PATIENCE;
    let opened = |log: &str, revision: &str| {
        let lines = log.lines().filter(|line| line.contains("session opened"));
        lines.filter(|line| line.contains(&format!("revision=\"{revision}"))).count()
    };
    while opened(&upstream.output(), DRAFT) < REVISIONS.len() {
        ensure!(Instant::now() < until, "not of the draft: {}", upstream.output());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

// holds: SES-08
#[tokio::test]
async fn the_end_of_a_session_ends_it_at_the_remote_server() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&Setup::in_front_of(&upstream.demo()))?;
    let clients =
        [Client::open(node.demo(), NEWEST).await?, Client::open(node.demo(), NEWEST).await?];
    reaches(&upstream, "roundhouse_sessions", |now| now == 2.0).await?;
    for client in clients {
        check::status(&client.delete().await?, 204)?;
    }
    reaches(&upstream, "roundhouse_sessions", |now| now == 0.0).await?;
    reaches(&node, "roundhouse_upstream_exchanges_open", |now| now == 0.0).await
}

// holds: CAN-04
#[tokio::test]
async fn a_cancellation_reaches_the_remote_server() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&Setup::in_front_of(&upstream.demo()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let call = client.call_with_progress("rh_sleep", json!({ "ms": 60_000 }), json!("t"));
    let id = call["id"].clone();
    let twin = client.twin();
    let sent = tokio::spawn(async move { twin.send(call).await });
    // Without a delay the call may come to the server after its cancellation.
    tokio::time::sleep(Duration::from_millis(200)).await;
    check::accepted(client.notify("notifications/cancelled", json!({ "requestId": id })).await?)
        .await?;
    let until = Instant::now() + PATIENCE;
    while text(&client.tool("rh_cancelled", json!({})).await?)? != "1" {
        ensure!(Instant::now() < until, "not cancelled");
    }
    sent.abort();
    Ok(())
}

#[tokio::test]
async fn messages_without_a_request_come_from_the_remote_server() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&Setup::in_front_of(&upstream.demo()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let mut listening = client.listen().await?;
    client.request("resources/subscribe", json!({ "uri": "test://watched-resource" })).await?;
    client.tool("rh_touch_resource", json!({})).await?;
    let (_, message) = listening.message().await?.context("the stream ended")?;
    ensure!(message["method"] == "notifications/resources/updated", "{message}");
    Ok(())
}

// holds: SES-09
#[tokio::test]
async fn a_server_of_the_typescript_sdk_is_used_and_may_restart() -> Result<()> {
    let port = port()?;
    let server = Everything::start(port, "streamableHttp").await?;
    let node = Node::start(&Setup::in_front_of(&server.url()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    ensure!(client.welcome["serverInfo"]["name"] == "mcp-servers/everything", "{}", client.welcome);
    let echo = client.tool("echo", json!({ "message": "round" })).await?;
    ensure!(text(&echo)?.contains("round"), "{echo}");
    let arguments = json!({ "duration": 1, "steps": 4 });
    let call = client.call_with_progress("trigger-long-running-operation", arguments, json!("t"));
    let messages = tests::mcp::messages(&client.stream(call).await?.rest().await?);
    ensure!(messages.len() == 5, "{messages:?}");
    drop(server);
    let refused = client.request("tools/call", json!({ "name": "echo" })).await?;
    ensure!(refused["error"]["code"] == -32603, "{refused}");
    let _server = Everything::start(port, "streamableHttp").await?;
    // The server answers 400 for the session that it does not know.
    let until = Instant::now() + PATIENCE;
    loop {
        let params = json!({ "name": "echo", "arguments": { "message": "again" } });
        let answer = client.request("tools/call", params).await?;
        if let Some(result) = answer.get("result") {
            ensure!(text(result)?.contains("again"), "{answer}");
            return Ok(());
        }
        ensure!(Instant::now() < until, "{answer}");
    }
}

// holds: OLD-08
#[tokio::test]
async fn a_server_of_the_typescript_sdk_with_http_sse_is_used() -> Result<()> {
    let server = Everything::start(port()?, "sse").await?;
    let url = server.url().replace("/mcp", "/sse");
    let node = Node::start(&Setup::in_front_of(&url))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let echo = client.tool("echo", json!({ "message": "round" })).await?;
    ensure!(text(&echo)?.contains("round"), "{echo}");
    let arguments = json!({ "duration": 1, "steps": 4 });
    let call = client.call_with_progress("trigger-long-running-operation", arguments, json!("t"));
    let messages = tests::mcp::messages(&client.stream(call).await?.rest().await?);
    ensure!(messages.len() == 5, "{messages:?}");
    Ok(())
}

// holds: SES-09
#[tokio::test]
async fn a_session_that_the_remote_server_ended_begins_anew_with_its_subscriptions() -> Result<()> {
    let setup = Setup::demo().listen(format!("127.0.0.1:{}", port()?));
    let upstream = Node::start(&setup)?;
    let node = Node::start(&Setup::in_front_of(&upstream.demo()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    client.request("resources/subscribe", json!({ "uri": "test://watched-resource" })).await?;
    let mut listening = client.listen().await?;
    drop(upstream);
    let _upstream = Node::start(&setup)?;
    let until = Instant::now() + PATIENCE;
    // At most the first one is answered with an error.
    while client
        .request("tools/call", json!({ "name": "rh_touch_resource" }))
        .await?
        .get("error")
        .is_some()
    {
        ensure!(Instant::now() < until, "it does not begin anew");
    }
    let (_, message) = listening.message().await?.context("the stream ended")?;
    ensure!(message["method"] == "notifications/resources/updated", "{message}");
    Ok(())
}

// holds: SEC-20
#[tokio::test]
async fn a_name_that_leads_to_loopback_is_refused() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let port = upstream.base.rsplit(':').next().context("no port")?;
    let at = |host: &str, more: &str| {
        Setup::config(format!(
            "[tenants.demo]\nauth = \"open\"\n[tenants.demo.backends.main]\nkind = \"http\"\n\
             url = \"http://{host}:{port}/demo/mcp\"\n{more}"
        ))
    };
    let node = Node::start(&at("localhost", ""))?;
    let client = Client::new(node.demo(), NEWEST);
    let answer = client.ask(client.message("initialize", client.introduction(json!({})))).await?;
    ensure!(answer["error"]["message"].to_string().contains("not permitted"), "{answer}");
    node.logs("allow_networks").await?;
    let allowed = "allow_networks = [\"127.0.0.0/8\", \"::1/128\"]\n";
    let node = Node::start(&at("localhost", allowed))?;
    Client::open(node.demo(), NEWEST).await?.is_well().await?;
    let Err(error) = Node::start(&at("127.0.0.1", "")) else { bail!("it starts") };
    ensure!(error.to_string().contains("allow_networks"), "{error}");
    Ok(())
}

// holds: SES-10
#[tokio::test]
async fn a_session_with_a_remote_server_outlives_its_owner() -> Result<()> {
    let redis = Redis::start()?;
    let upstream = Node::start(&Setup::demo())?;
    let setup = Setup::in_front_of(&upstream.demo())
        .with("store.url", redis.url())
        .with("cluster.listen", "127.0.0.1:0")
        .with("cluster.secret", "known to these three nodes, no secret");
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(Node::start(&setup)?);
    }
    for node in &nodes {
        reaches(node, "roundhouse_stabilising", |value| value == 0.0).await?;
    }
    let mut client = Client::open(nodes[0].demo(), NEWEST).await?;
    client.request("resources/subscribe", json!({ "uri": "test://watched-resource" })).await?;
    client.url = nodes[1].demo();
    client.tool("rh_echo", json!({})).await?;
    // `rh_count` is read-only, so it runs again after the owner was lost.
    let count = json!({ "n": 10, "interval_ms": 100 });
    let call = client.call_with_progress("rh_count", count, json!(1));
    let response = client.send(call).await?;
    nodes[0].kill()?;
    let word = final_response(response).await?;
    ensure!(word.get("result").is_some() || word["error"]["code"] == -32000, "{word}");
    client.url = nodes[2].demo();
    let mut listening = client.listen().await?;
    client.tool("rh_touch_resource", json!({})).await?;
    loop {
        let (_, message) = listening.message().await?.context("the stream ended")?;
        if message["method"] == "notifications/resources/updated" {
            return Ok(());
        }
    }
}

#[tokio::test]
async fn a_node_that_stops_ends_its_sessions_with_the_remote_server() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&Setup::in_front_of(&upstream.demo()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    client.tool("rh_echo", json!({})).await?;
    tokio::task::spawn_blocking(move || node.stop(PATIENCE)).await??;
    let until = Instant::now() + Duration::from_secs(3);
    while upstream.metric("roundhouse_sessions").await? != Some(0.0) {
        ensure!(Instant::now() < until, "its session is left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
