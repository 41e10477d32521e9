//! Several servers of a tenant behind one endpoint: a program, a server over HTTP and a handler of the node.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::mcp::{Client, REVISIONS, messages};
use tests::sse::PATIENCE;
use tests::{Node, Setup, check, tools};

const NEWEST: &str = "2025-11-25";

/// A tenant with the fixture as a program, over HTTP and in the node, and one more backend.
fn three(http: &str, more: &str) -> Setup {
    let program = tools::built("everything").display().to_string();
    Setup::config(format!(
        "[tenants.demo]\nauth = \"open\"\n\
         [tenants.demo.backends.prog]\nkind = \"stdio\"\ncommand = \"{program}\"\n\
         [tenants.demo.backends.remote]\nkind = \"http\"\nurl = \"{http}\"\n\
         allow_networks = [\"127.0.0.0/8\"]\nprefix = \"far\"\n\
         [tenants.demo.backends.own]\nkind = \"native\"\nname = \"everything\"\nprefix = \"\"\n{more}"
    ))
}

async fn names(client: &Client) -> Result<Vec<String>> {
    let listed = client.request("tools/list", json!({})).await?;
    let tools = listed["result"]["tools"].as_array().with_context(|| format!("{listed}"))?;
    Ok(tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect())
}

// holds: TOOL-01
#[tokio::test]
async fn clients_of_every_revision_use_several_servers_as_one() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&three(&upstream.demo(), ""))?;
    for revision in REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        ensure!(client.welcome["serverInfo"]["name"] == "demo", "{}", client.welcome);
        ensure!(client.welcome["capabilities"]["tools"]["listChanged"] == true);
        let names = names(&client).await?;
        for prefix in ["prog__", "far__", ""] {
            let wanted = format!("{prefix}rh_echo");
            ensure!(names.iter().filter(|name| **name == wanted).count() == 1, "{names:?}");
            let echo = client.tool(&wanted, json!({ "number": 7 })).await?;
            ensure!(echo["structuredContent"]["number"] == 7, "{revision}: {echo}");
            let count = json!({ "n": 3, "interval_ms": 5 });
            let call = client.call_with_progress(&format!("{prefix}rh_count"), count, json!(1));
            let messages = messages(&client.stream(call).await?.rest().await?);
            let steps = messages.iter().filter(|m| m["params"]["progress"].is_number()).count();
            ensure!(steps == 3, "{revision} {prefix}: {messages:?}");
        }
        let unknown = client.request("tools/call", json!({ "name": "none__rh_echo" })).await?;
        ensure!(unknown["error"].is_object() || unknown["result"]["isError"] == true, "{unknown}");
        check::status(&client.delete().await?, 204)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_backend_that_does_not_start_costs_only_its_own_tools() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let dead = "[tenants.demo.backends.dead]\nkind = \"http\"\nurl = \"http://127.0.0.1:1/mcp\"\n\
                allow_networks = [\"127.0.0.0/8\"]\n";
    let node = Node::start(&three(&upstream.demo(), dead))?;
    let begin = Instant::now();
    let client = Client::open(node.demo(), NEWEST).await?;
    ensure!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    let names = names(&client).await?;
    ensure!(names.iter().any(|name| name == "far__rh_echo"), "{names:?}");
    ensure!(!names.iter().any(|name| name.starts_with("dead__")), "{names:?}");
    let refused = client.request("tools/call", json!({ "name": "dead__rh_echo" })).await?;
    let text = refused["error"]["message"].as_str().unwrap_or_default();
    ensure!(text.contains("`dead` is not available"), "{refused}");
    ensure!(node.output().contains("a server of a catalog is not available"), "{}", node.output());
    Ok(())
}

#[tokio::test]
async fn a_server_that_ends_in_mid_call_fails_that_call_and_comes_back() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&three(&upstream.demo(), ""))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    names(&client).await?;
    let mut listening = client.listen().await?;
    let twin = client.twin();
    let slow = tokio::spawn(async move { twin.tool("rh_sleep", json!({ "ms": 500 })).await });
    let crashed = client.request("tools/call", json!({ "name": "prog__rh_crash" })).await?;
    let text = crashed["error"]["message"].as_str().unwrap_or_default();
    ensure!(text.contains("the server `prog` ended"), "{crashed}");
    slow.await?.context("the call at another server goes on")?;
    let mut changes = 0;
    while changes < 1 {
        let (_, message) = listening.message().await?.context("the stream ended")?;
        changes += usize::from(message["method"] == "notifications/tools/list_changed");
    }
    let until = Instant::now() + PATIENCE;
    while client.tool("prog__rh_echo", json!({})).await.is_err() {
        ensure!(Instant::now() < until, "not back");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let all = names(&client).await?;
    ensure!(all.iter().any(|name| name == "prog__rh_echo"), "{all:?}");
    Ok(())
}

#[tokio::test]
async fn requests_of_each_server_reach_the_client_and_the_answers_that_server() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&three(&upstream.demo(), ""))?;
    let capabilities = json!({ "elicitation": {} });
    let client = Client::open_with(node.demo(), NEWEST, capabilities).await?;
    let mut streams = Vec::new();
    for prefix in ["prog__", "far__", ""] {
        let call = client.call(&format!("{prefix}rh_ask"), json!({ "times": 2 }));
        streams.push(client.stream(call).await?);
    }
    for _ in 0..2 {
        for stream in streams.iter_mut().rev() {
            let (_, question) = stream.message().await?.context("no question")?;
            ensure!(question["method"] == "elicitation/create", "{question}");
            let answer = json!({ "action": "accept", "content": {} });
            check::accepted(client.answer(&question["id"], answer).await?).await?;
        }
    }
    for stream in &mut streams {
        let (_, word) = stream.message().await?.context("no final response")?;
        ensure!(word.get("result").is_some(), "{word}");
    }
    Ok(())
}

#[tokio::test]
async fn a_cancellation_reaches_the_server_that_has_the_call() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let node = Node::start(&three(&upstream.demo(), ""))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let call = client.call_with_progress("prog__rh_sleep", json!({ "ms": 60_000 }), json!("t"));
    let id = call["id"].clone();
    let twin = client.twin();
    let sent = tokio::spawn(async move { twin.send(call).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    check::accepted(client.notify("notifications/cancelled", json!({ "requestId": id })).await?)
        .await?;
    let cancelled = async |tool: &str| -> Result<Value> {
        Ok(client.tool(tool, json!({})).await?["content"][0]["text"].clone())
    };
    let until = Instant::now() + PATIENCE;
    while cancelled("prog__rh_cancelled").await? != "1" {
        ensure!(Instant::now() < until, "not cancelled");
    }
    ensure!(cancelled("far__rh_cancelled").await? == "0", "cancelled at another server");
    sent.abort();
    Ok(())
}
