//! Several servers behind one endpoint whose session moves to another node: sessions with servers over HTTP
//! are carried on, programs begin anew. And servers of a catalog that lose their sessions.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::deployment::Plan;
use tests::mcp::{Client, is_response};
use tests::nodes::port;
use tests::recorded::{Recorded, call, follow, reaches, text};
use tests::sdk_server::Everything;
use tests::sse::{Events, PATIENCE};
use tests::upstream::Upstream;
use tests::{Node, Setup, check, tools};

const NEWEST: &str = "2025-11-25";

/// A tenant with a program and two servers over HTTP.
fn settings(one: &str, two: &str, more_of_two: &str) -> String {
    let program = tools::built("everything").display().to_string();
    format!(
        "[tenants.demo]\nauth = \"open\"\n\
         [tenants.demo.backends.prog]\nkind = \"stdio\"\ncommand = \"{program}\"\n\
         [tenants.demo.backends.one]\nkind = \"http\"\nurl = \"{one}\"\n\
         allow_networks = [\"127.0.0.0/8\"]\n\
         [tenants.demo.backends.two]\nkind = \"http\"\nurl = \"{two}\"\n\
         allow_networks = [\"127.0.0.0/8\"]\n{more_of_two}"
    )
}

/// Two servers over HTTP, and three nodes that offer them beside a program.
struct Three {
    one: Upstream,
    two: Upstream,
    cluster: Recorded,
}

impl Three {
    async fn start() -> Result<Self> {
        let (one, two) = (Upstream::start()?, Upstream::start()?);
        let settings = settings(&one.node.demo(), &two.node.demo(), "").replacen(
            "command =",
            "pass_env = [\"EVERYTHING_RECORD\"]\ncommand =",
            1,
        );
        let setups = (0..3).map(|_| Setup::config(settings.clone()));
        let cluster = Recorded::start(setups).await?;
        Ok(Self { one, two, cluster })
    }

    /// Each server has had one session only.
    fn began_once(&self) -> Result<()> {
        for upstream in [&self.one, &self.two] {
            ensure!(upstream.sessions_begun() == 1, "{}", upstream.node.output());
        }
        Ok(())
    }

    /// The session is deleted, and the servers have ended theirs.
    async fn ends(&self, client: &Client) -> Result<()> {
        check::status(&client.delete().await?, 204)?;
        for upstream in [&self.one, &self.two] {
            reaches(&upstream.node, "roundhouse_sessions", |now| now == 0.0).await?;
        }
        Ok(())
    }
}

async fn names(client: &Client) -> Result<Vec<String>> {
    let listed = client.request("tools/list", json!({})).await?;
    let tools = listed["result"]["tools"].as_array().with_context(|| format!("{listed}"))?;
    Ok(tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect())
}

async fn echoes(client: &Client) -> Result<()> {
    for tool in ["prog__rh_echo", "one__rh_echo", "two__rh_echo"] {
        let echo = client.tool(tool, json!({ "number": 3 })).await.context(tool)?;
        ensure!(echo["structuredContent"]["number"] == 3, "{tool}: {echo}");
    }
    Ok(())
}

async fn counted(stream: &mut Events, least: usize) -> Result<Vec<u64>> {
    let mut counted = Vec::new();
    while counted.len() < least {
        let (_, message) = stream.message().await?.context("the stream ended")?;
        counted.extend(message["params"]["progress"].as_f64().map(|number| number as u64));
    }
    Ok(counted)
}

// holds: SES-10, SSE-07
#[tokio::test]
async fn calls_go_on_at_each_server_over_http_when_the_owner_is_killed() -> Result<()> {
    let mut three = Three::start().await?;
    let mut client = three.cluster.open(0, NEWEST).await?;
    let before = names(&client).await?;
    client.request("logging/setLevel", json!({ "level": "error" })).await?;
    client.url = three.cluster.node(1)?.demo();
    let steps = json!({ "n": 20, "interval_ms": 100 });
    let call_of = |tool: &str, key| call(&client, tool, steps.clone(), key);
    let mut of_one = client.stream(call_of("one__rh_record", "first")).await?;
    let mut of_two = client.stream(call_of("two__rh_record", "second")).await?;
    let mut of_program = client.stream(call_of("prog__rh_record", "third")).await?;
    let mut progress = [counted(&mut of_one, 5).await?, counted(&mut of_two, 3).await?];
    counted(&mut of_program, 2).await?;
    three.cluster.kill(0)?;
    for (stream, counted) in [&mut of_one, &mut of_two].into_iter().zip(&mut progress) {
        let (rest, response) = follow(stream).await?;
        counted.extend(rest);
        let response = response.context("no response")?;
        text(&response)?;
        ensure!(*counted == (1..=20).collect::<Vec<u64>>(), "{counted:?}");
    }
    // The program ended with its node, and this tool may not run twice.
    let (_, response) = follow(&mut of_program).await?;
    ensure!(response.is_some_and(|response| response["error"].is_object()), "no error");
    ensure!((three.one.runs("first")?, three.two.runs("second")?) == (1, 1), "not once");
    ensure!(three.cluster.runs("third")? == 1, "it ran again");
    ensure!(names(&client).await? == before, "{before:?}");
    echoes(&client).await?;
    three.began_once()?;
    three.ends(&client).await
}

// holds: SES-10
#[tokio::test]
async fn a_catalog_moves_by_drain_and_while_redis_is_away_with_one_session_of_each_server()
-> Result<()> {
    let mut three = Three::start().await?;
    let mut client = three.cluster.open(0, NEWEST).await?;
    let before = names(&client).await?;
    client.url = three.cluster.node(2)?.demo();
    let drained = three.cluster.nodes[0].take().context("no node")?;
    tokio::task::spawn_blocking(move || drained.stop(PATIENCE)).await??;
    for upstream in [&three.one, &three.two] {
        let sessions = upstream.node.metric("roundhouse_sessions").await?;
        ensure!(sessions == Some(1.0), "it was ended");
    }
    echoes(&client).await?;
    three.cluster.redis.freeze()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    three.cluster.redis.thaw()?;
    echoes(&client).await?;
    three.cluster.kill(1)?;
    echoes(&client).await?;
    ensure!(names(&client).await? == before, "{before:?}");
    three.began_once()?;
    three.ends(&client).await
}

// holds: SES-10, SSE-07
#[tokio::test]
async fn updates_of_a_server_come_once_while_owners_are_killed() -> Result<()> {
    let mut three = Three::start().await?;
    let mut client = three.cluster.open(0, NEWEST).await?;
    // Of servers with one URI it is that of the first by name.
    client.request("resources/subscribe", json!({ "uri": "test://watched-resource" })).await?;
    client.url = three.cluster.node(2)?.demo();
    let mut listening = client.listen().await?;
    let next = async |listening: &mut Events| -> Result<Value> {
        loop {
            let message = tokio::time::timeout(PATIENCE, listening.message());
            let (_, message) = message.await.context("no update")??.context("the stream ended")?;
            // The program begins anew, so its lists may have changed.
            let method = message["method"].as_str().unwrap_or_default();
            if !method.ends_with("list_changed") {
                return Ok(message);
            }
        }
    };
    for node in [0, 1] {
        for _ in 0..3 {
            client.tool("one__rh_touch_resource", json!({})).await?;
            let message = next(&mut listening).await?;
            ensure!(message["method"] == "notifications/resources/updated", "{message}");
        }
        if node == 0 {
            three.cluster.kill(0)?;
            three.cluster.deaths_noticed().await?;
        }
    }
    // The server over HTTP sends an update while the session has no owner.
    client.tool("one__rh_touch_resource", json!({})).await?;
    let message = next(&mut listening).await?;
    ensure!(message["method"] == "notifications/resources/updated", "{message}");
    while let Some(Some(block)) = listening.next_within(Duration::from_millis(500)).await? {
        let method = block.message().map(|message| message["method"].clone());
        ensure!(method != Some(json!("notifications/resources/updated")), "an update came twice");
    }
    three.began_once()
}

// holds: SES-08
#[tokio::test]
async fn a_session_that_ends_at_an_owner_without_links_ends_at_each_server() -> Result<()> {
    let mut three = Three::start().await?;
    let mut client = three.cluster.open(0, NEWEST).await?;
    client.tool("one__rh_echo", json!({})).await?;
    client.url = three.cluster.node(1)?.demo();
    three.cluster.kill(0)?;
    three.cluster.deaths_noticed().await?;
    three.ends(&client).await?;
    three.began_once()
}

/// Behind nginx, whose connections to a node that is killed end: the client resumes.
// holds: SES-10, SSE-07
#[tokio::test]
async fn calls_go_on_behind_nginx_while_each_node_is_killed() -> Result<()> {
    let (one, two) = (Upstream::start()?, Upstream::start()?);
    let plan = Plan::demo().config(settings(&one.node.demo(), &two.node.demo(), ""));
    let cluster = plan.start().await?;
    let client = Client::open(cluster.demo(), NEWEST).await?;
    for (number, node) in ["node1", "node2", "node3"].into_iter().enumerate() {
        let steps = json!({ "n": 20, "interval_ms": 100 });
        let (tool, key) = (["one__rh_record", "two__rh_record"][number % 2], format!("k{number}"));
        let mut stream = client.stream(call(&client, tool, steps, &key)).await?;
        let (mut counted, mut last, mut killed) = (Vec::new(), None, false);
        let until = Instant::now() + 2 * PATIENCE;
        let response = loop {
            ensure!(Instant::now() < until, "{counted:?}");
            match stream.message().await {
                Ok(Some((block, message))) => {
                    last = block.id.or(last);
                    if is_response(&message) {
                        break message;
                    }
                    let step = message["params"]["progress"].as_f64();
                    counted.extend(step.map(|number| number as u64));
                }
                Ok(None) | Err(_) => {
                    let cursor = last.as_deref().context("no event id")?;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    if let Ok(resumed) = client.resume(cursor).await {
                        stream = resumed;
                    }
                }
            }
            if counted.len() == 5 && !std::mem::replace(&mut killed, true) {
                cluster.kill(node).await?;
            }
        };
        text(&response)?;
        ensure!(counted == (1..=20).collect::<Vec<u64>>(), "{node}: {counted:?}");
        let runs = [&one, &two][number % 2].runs(&key)?;
        ensure!(runs == 1, "{key} ran {runs} times");
        cluster.start(node).await?;
    }
    for upstream in [&one, &two] {
        ensure!(upstream.sessions_begun() == 1, "{}", upstream.node.output());
    }
    Ok(())
}

// holds: SES-09
#[tokio::test]
async fn a_request_for_a_session_that_one_server_lost_is_answered_in_a_new_one() -> Result<()> {
    let upstream = Upstream::start()?;
    let server = Everything::start(port()?, "streamableHttp").await?;
    let node = Node::start(&Setup::config(settings(&upstream.node.demo(), &server.url(), "")))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    client.tool("two__echo", json!({ "message": "round" })).await?;
    server.end_first_session().await?;
    let echo = client.tool("two__echo", json!({ "message": "again" })).await?;
    ensure!(echo["content"][0]["text"].to_string().contains("again"), "{echo}");
    client.tool("one__rh_echo", json!({})).await?;
    ensure!(server.session_ids()?.len() == 2, "{:?}", server.lines()?);
    ensure!(upstream.sessions_begun() == 1, "{}", upstream.node.output());
    Ok(())
}

// holds: SES-09
#[tokio::test]
async fn a_stateful_server_that_lost_its_session_fails_its_own_tools_only() -> Result<()> {
    let upstream = Upstream::start()?;
    let server = Everything::start(port()?, "streamableHttp").await?;
    let settings = settings(&upstream.node.demo(), &server.url(), "stateful = true\n");
    let mut cluster = Recorded::start((0..2).map(|_| Setup::config(settings.clone()))).await?;
    let mut client = cluster.open(0, NEWEST).await?;
    client.tool("two__echo", json!({ "message": "round" })).await?;
    server.end_first_session().await?;
    let again = json!({ "name": "two__echo", "arguments": { "message": "again" } });
    let first = client.request("tools/call", again.clone()).await?;
    ensure!(first["error"].is_object(), "{first}");
    let lost = async |client: &Client| -> Result<()> {
        let second = client.request("tools/call", again.clone()).await?;
        let text = second["error"]["message"].as_str().unwrap_or_default();
        ensure!(text.contains("`two` has lost what it kept for this session"), "{second}");
        client.tool("one__rh_echo", json!({})).await?;
        let names = names(client).await?;
        ensure!(!names.iter().any(|name| name.starts_with("two__")), "{names:?}");
        Ok(())
    };
    lost(&client).await?;
    client.url = cluster.node(1)?.demo();
    cluster.kill(0)?;
    cluster.deaths_noticed().await?;
    lost(&client).await.context("at the next owner")?;
    ensure!(server.session_ids()?.len() == 1, "{:?}", server.lines()?);
    let other = Client::open(client.url.clone(), NEWEST).await?;
    other.tool("two__echo", json!({ "message": "in a new session" })).await?;
    Ok(())
}
