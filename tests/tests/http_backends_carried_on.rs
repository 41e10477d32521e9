//! Sessions with a server over HTTP whose owner is lost, stops, or is cut off from Redis: the next owner
//! carries the same session of the server on. And sessions that the server has lost.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::mcp::Client;
use tests::nodes::port;
use tests::recorded::{Recorded, call, follow, reaches, text};
use tests::sdk_server::Everything;
use tests::sse::PATIENCE;
use tests::upstream::Upstream;
use tests::{Node, Setup, check};

const NEWEST: &str = "2025-11-25";

async fn three_in_front_of(upstream: &Upstream) -> Result<Recorded> {
    let url = upstream.node.demo();
    Recorded::start((0..3).map(|_| Setup::in_front_of(&url))).await
}

fn counting(client: &Client, key: &str) -> Value {
    call(client, "rh_record", json!({ "n": 20, "interval_ms": 100 }), key)
}

// holds: SES-10, SSE-07
#[tokio::test]
async fn a_call_whose_owner_is_killed_goes_on_at_the_server_and_no_event_is_lost() -> Result<()> {
    let upstream = Upstream::start()?;
    let mut cluster = three_in_front_of(&upstream).await?;
    let mut client = cluster.open(0, NEWEST).await?;
    client.url = cluster.node(1)?.demo();
    let mut stream = client.stream(counting(&client, "once")).await?;
    let mut counted = Vec::new();
    while counted.len() < 5 {
        let (_, message) = stream.message().await?.context("the stream ended")?;
        counted.extend(message["params"]["progress"].as_f64().map(|number| number as u64));
    }
    cluster.kill(0)?;
    let (rest, response) = follow(&mut stream).await?;
    counted.extend(rest);
    let response = response.context("no response")?;
    ensure!(text(&response)?.contains("once") || response.get("result").is_some(), "{response}");
    let all: Vec<u64> = (1..=20).collect();
    ensure!(counted == all, "{counted:?}");
    ensure!(upstream.runs("once")? == 1, "it ran {} times", upstream.runs("once")?);
    client.tool("rh_echo", json!({})).await?;
    ensure!(upstream.sessions_begun() == 1, "{}", upstream.node.output());
    check::status(&client.delete().await?, 204)?;
    reaches(&upstream.node, "roundhouse_sessions", |now| now == 0.0).await
}

// holds: SES-10, SSE-07
#[tokio::test]
async fn messages_without_a_request_come_once_while_owners_are_killed_and_drained() -> Result<()> {
    let upstream = Upstream::start()?;
    let mut cluster = three_in_front_of(&upstream).await?;
    let mut client = cluster.open(0, NEWEST).await?;
    client.request("resources/subscribe", json!({ "uri": "test://watched-resource" })).await?;
    client.url = cluster.node(2)?.demo();
    let mut listening = client.listen().await?;
    let mut touched = 0;
    let updates = async |client: &Client, listening: &mut tests::sse::Events| -> Result<()> {
        client.tool("rh_touch_resource", json!({})).await?;
        let (_, message) = listening.message().await?.context("the stream ended")?;
        ensure!(message["method"] == "notifications/resources/updated", "{message}");
        Ok(())
    };
    for node in [0, 1] {
        for _ in 0..3 {
            updates(&client, &mut listening).await?;
            touched += 1;
        }
        if node == 0 {
            cluster.kill(0)?;
            cluster.deaths_noticed().await?;
        }
    }
    updates(&client, &mut listening).await?;
    // A second one of an event would come before this answer's.
    let quiet = listening.next_within(Duration::from_millis(500)).await?;
    ensure!(quiet.flatten().is_none_or(|block| block.is_comment()), "after {touched} updates");
    ensure!(upstream.sessions_begun() == 1, "{}", upstream.node.output());
    Ok(())
}

// holds: SES-10
#[tokio::test]
async fn a_session_moves_by_drain_and_while_redis_is_away_with_one_session_of_the_server()
-> Result<()> {
    let upstream = Upstream::start()?;
    let mut cluster = three_in_front_of(&upstream).await?;
    let mut client = cluster.open(0, NEWEST).await?;
    client.tool("rh_echo", json!({})).await?;
    client.url = cluster.node(2)?.demo();
    let drained = cluster.nodes[0].take().context("no node")?;
    tokio::task::spawn_blocking(move || drained.stop(PATIENCE)).await??;
    ensure!(upstream.node.metric("roundhouse_sessions").await? == Some(1.0), "it was ended");
    client.tool("rh_echo", json!({})).await?;
    cluster.redis.freeze()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.redis.thaw()?;
    client.tool("rh_echo", json!({})).await?;
    cluster.kill(1)?;
    client.tool("rh_echo", json!({})).await?;
    ensure!(upstream.sessions_begun() == 1, "{}", upstream.node.output());
    check::status(&client.delete().await?, 204)?;
    reaches(&upstream.node, "roundhouse_sessions", |now| now == 0.0).await
}

// holds: SES-08
#[tokio::test]
async fn a_session_that_ends_at_an_owner_without_a_link_ends_at_the_server() -> Result<()> {
    let upstream = Upstream::start()?;
    let mut cluster = three_in_front_of(&upstream).await?;
    let mut client = cluster.open(0, NEWEST).await?;
    client.tool("rh_echo", json!({})).await?;
    client.url = cluster.node(1)?.demo();
    cluster.kill(0)?;
    cluster.deaths_noticed().await?;
    check::status(&client.delete().await?, 204)?;
    reaches(&upstream.node, "roundhouse_sessions", |now| now == 0.0).await?;
    ensure!(upstream.sessions_begun() == 1, "{}", upstream.node.output());
    Ok(())
}

// holds: SES-10
#[tokio::test]
async fn the_record_has_no_session_id_of_the_server_in_the_clear() -> Result<()> {
    let server = Everything::start(port()?, "streamableHttp").await?;
    let cluster = Recorded::start((0..1).map(|_| Setup::in_front_of(&server.url()))).await?;
    let client = cluster.open(0, NEWEST).await?;
    client.tool("echo", json!({ "message": "round" })).await?;
    let id = server.session_ids()?.remove(0);
    let keys = cluster.redis.told("KEYS *")?;
    ensure!(!keys.is_empty(), "nothing is kept");
    for key in keys {
        for command in [format!("HGETALL {key}"), format!("GET {key}")] {
            let kept = cluster.redis.told(&command).unwrap_or_default().concat();
            ensure!(!kept.contains(&id), "{key} has it: {kept}");
        }
    }
    Ok(())
}

// holds: SES-10, SES-08
#[tokio::test]
async fn a_server_of_the_typescript_sdk_sees_one_session_and_one_delete() -> Result<()> {
    let server = Everything::start(port()?, "streamableHttp").await?;
    let url = server.url();
    let mut cluster = Recorded::start((0..3).map(|_| Setup::in_front_of(&url))).await?;
    let mut client = cluster.open(0, NEWEST).await?;
    client.request("logging/setLevel", json!({ "level": "error" })).await?;
    client.tool("echo", json!({ "message": "round" })).await?;
    client.url = cluster.node(2)?.demo();
    let arguments = json!({ "duration": 2, "steps": 8 });
    let call = client.call_with_progress("trigger-long-running-operation", arguments, json!("t"));
    let mut stream = client.stream(call).await?;
    let mut counted = Vec::new();
    while counted.len() < 2 {
        let (_, message) = stream.message().await?.context("the stream ended")?;
        counted.extend(message["params"]["progress"].as_f64().map(|number| number as u64));
    }
    cluster.kill(0)?;
    let (rest, response) = tokio::time::timeout(Duration::from_secs(60), async {
        let mut followed = (Vec::new(), None);
        while let Some((_, message)) = next_of_slow_server(&mut stream).await? {
            if tests::mcp::is_response(&message) {
                followed.1 = Some(message);
                break;
            }
            followed.0.extend(message["params"]["progress"].as_f64().map(|number| number as u64));
        }
        anyhow::Ok(followed)
    })
    .await??;
    counted.extend(rest);
    ensure!(counted == (1..=8).collect::<Vec<_>>(), "{counted:?}");
    ensure!(response.is_some_and(|response| response.get("result").is_some()), "no result");
    client.tool("echo", json!({ "message": "again" })).await?;
    check::status(&client.delete().await?, 204)?;
    let until = Instant::now() + PATIENCE;
    loop {
        let lines = server.lines()?;
        let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
        let (begun, ended) =
            (count("Session initialized"), count("Received session termination request"));
        if (begun, ended) == (1, 1) {
            return Ok(());
        }
        ensure!(begun == 1 && Instant::now() < until, "{lines:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

// holds: SES-09
#[tokio::test]
async fn a_request_for_a_session_that_the_server_lost_is_answered_in_a_new_one() -> Result<()> {
    let server = Everything::start(port()?, "streamableHttp").await?;
    let node = Node::start(&Setup::in_front_of(&server.url()))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    client.tool("echo", json!({ "message": "round" })).await?;
    server.end_first_session().await?;
    let echo = client.tool("echo", json!({ "message": "again" })).await?;
    ensure!(echo["content"][0]["text"].to_string().contains("again"), "{echo}");
    ensure!(server.session_ids()?.len() == 2, "{:?}", server.lines()?);
    Ok(())
}

// holds: SES-09
#[tokio::test]
async fn a_session_ends_if_a_stateful_server_lost_it() -> Result<()> {
    let server = Everything::start(port()?, "streamableHttp").await?;
    let setup = format!(
        "[tenants.demo]\nauth = \"open\"\n[tenants.demo.backends.main]\nkind = \"http\"\n\
         url = \"{}\"\nallow_networks = [\"127.0.0.0/8\"]\nstateful = true\n",
        server.url()
    );
    let node = Node::start(&Setup::config(setup))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    client.tool("echo", json!({ "message": "round" })).await?;
    server.end_first_session().await?;
    let echo = client.message("tools/call", json!({ "name": "echo", "arguments": {} }));
    let answer = client.send(echo).await?;
    if answer.status() != 404 {
        let answer: Value = answer.json().await?;
        ensure!(answer["error"]["code"] == -32000, "{answer}");
    }
    let status = client.send(client.message("ping", json!({}))).await?.status();
    ensure!(status == 404, "{status}");
    ensure!(server.session_ids()?.len() == 1, "{:?}", server.lines()?);
    Ok(())
}

/// The next message. The server sends what follows a resume only to the next one, 5 s later.
async fn next_of_slow_server(
    stream: &mut tests::sse::Events,
) -> Result<Option<(Option<String>, Value)>> {
    loop {
        let block = stream.next_within(Duration::from_secs(40)).await?.context("nothing came")?;
        let Some(block) = block else { return Ok(None) };
        if let Some(message) = block.message() {
            return Ok(Some((block.id, message)));
        }
    }
}
