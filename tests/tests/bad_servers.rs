//! Behaviour that tenants' servers must not have: invalid output, crashes, hangs, two answers.
//! Each affects at most its own session, and no other.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::check::{self, Id};
use tests::mcp::{Client, final_response, messages};
use tests::{Node, Setup, processes, tools};

const NEWEST: &str = "2025-11-25";

// holds: STD-01, STD-02, STD-03, STD-07
#[tokio::test]
async fn odd_words_are_skipped_and_the_answer_still_comes() -> Result<()> {
    beside_a_healthy_session(async |client| {
        for (tool, text) in [
            ("junk", "after junk"),
            ("strange", "after strange ids"),
            ("talkative", "after ten megabytes of stderr"),
            ("crlf", "with CRLF"),
            ("batch", "in a batch"),
            ("twice", "first"),
        ] {
            let result = client.tool(tool, json!({})).await.context(tool)?;
            ensure!(result["content"][0]["text"] == text, "{tool}: {result}");
            ok(client).await.context(tool)?;
        }
        Ok(())
    })
    .await
}

// holds: STD-05
#[tokio::test]
async fn a_server_that_dies_fails_its_calls_and_is_started_again() -> Result<()> {
    beside_a_healthy_session(async |client| {
        for tool in ["die", "half"] {
            let call = client.call(tool, json!({}));
            let id = call["id"].clone();
            let response = client.send(call).await?;
            ensure!(response.status() == 200, "{}", response.status());
            check::is_error(&final_response(response).await?, -32603, Id::Of(id)).context(tool)?;
            ok(client).await.context(tool)?;
        }
        Ok(())
    })
    .await
}

// holds: RPC-22, CAN-04
#[tokio::test]
async fn a_server_that_hangs_or_keeps_silent_is_waited_for_only_so_long() -> Result<()> {
    let node = Node::start(&odd(&[]).with("sessions.request_secs", 2))?;
    for tool in ["silent", "hang"] {
        let client = Client::open(node.demo(), NEWEST).await?;
        let healthy = Client::open(node.demo(), NEWEST).await?;
        let call = client.call(tool, json!({}));
        let id = call["id"].clone();
        let started = Instant::now();
        let response = client.send(call).await?;
        let (word, well) = tokio::join!(final_response(response), ok(&healthy));
        well?;
        check::is_error(&word?, -32000, Id::Of(id)).context(tool)?;
        ensure!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
        client.delete().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_is_none_is_no_answer() -> Result<()> {
    let node = Node::start(&odd(&[]).with("sessions.request_secs", 2))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let call = client.call("neither", json!({}));
    let id = call["id"].clone();
    check::is_error(&final_response(client.send(call).await?).await?, -32000, Id::Of(id))?;
    ok(&client).await
}

// holds: STD-11
#[tokio::test]
async fn a_line_without_end_does_not_fill_the_node() -> Result<()> {
    let node = Node::start(&odd(&[]))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let healthy = Client::open(node.demo(), NEWEST).await?;
    ok(&client).await?;
    let before = processes::resident(node.pid())?;
    let call = client.call("long", json!({}));
    let word = final_response(client.send(call).await?).await?;
    let after = processes::resident(node.pid())?;
    ensure!(after < before + (64 << 20), "from {before} to {after} bytes");
    // Whether the server is still read or is started again, the call has a final response.
    ensure!(word.get("result").is_some() || word["error"]["code"] == -32603, "{word}");
    ok(&client).await?;
    ok(&healthy).await
}

// holds: PING-01, PING-04
#[tokio::test]
async fn a_server_that_pings_is_answered_here() -> Result<()> {
    let node = Node::start(&odd(&[]))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let response = client.send(client.call("ping", json!({}))).await?;
    // A ping that is passed on to the client would make the answer a stream.
    ensure!(check::header(&response, "content-type")?.starts_with("application/json"));
    let word = final_response(response).await?;
    let pong: Value =
        serde_json::from_str(word["result"]["content"][0]["text"].as_str().context("no text")?)?;
    ensure!(pong == json!({"jsonrpc": "2.0", "id": "are-you-there", "result": {}}), "{pong}");
    Ok(())
}

// holds: PRG-05, PRG-02
#[tokio::test]
async fn a_flood_of_progress_is_thinned_and_ends_with_its_last_step() -> Result<()> {
    let node = Node::start(&odd(&[]))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let call = client.call_with_progress("flood", json!({}), json!("f"));
    let heard = messages(&client.stream(call).await?.rest().await?);
    let steps: Vec<i64> =
        heard.iter().filter_map(|told| told["params"]["progress"].as_i64()).collect();
    ensure!(steps.len() < 2_000, "{} steps passed", steps.len());
    ensure!(steps.is_sorted() && steps.last() == Some(&10_000), "{:?}", steps.last());
    ensure!(heard.last().context("nothing")?["result"]["content"][0]["text"] == "after a flood");
    Ok(())
}

// holds: RPC-12, SMP-01
#[tokio::test]
async fn a_question_that_the_client_cannot_take_is_refused_here() -> Result<()> {
    let node = Node::start(&odd(&[]))?;
    for revision in tests::mcp::REVISIONS {
        let client = Client::open(node.demo(), revision).await?;
        let result = client.tool("ask", json!({})).await?;
        let reply: Value =
            serde_json::from_str(result["content"][0]["text"].as_str().context("no text")?)?;
        ensure!(reply["id"] == "question" && reply["error"]["code"] == -32601, "{reply}");
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_never_greets_is_given_up_on() -> Result<()> {
    let mark = processes::mark();
    let setup = odd(&["mute"]).with("sessions.start_secs", 2).env(processes::VARIABLE, &mark);
    let node = Node::start(&setup)?;
    check_refused_start(&node).await?;
    processes::all_gone(&mark, Some(node.pid()), Duration::from_secs(15)).await
}

#[tokio::test]
async fn a_server_that_refuses_to_greet_or_does_not_exist_is_an_error_and_no_session() -> Result<()>
{
    for setup in
        [odd(&["refuse"]), Setup::hosting(["no-such-program-anywhere"]), Setup::hosting(["false"])]
    {
        let node = Node::start(&setup.with("sessions.start_secs", 5))?;
        check_refused_start(&node).await?;
        ensure!(node.metric("roundhouse_sessions").await? == Some(0.0));
    }
    Ok(())
}

/// `initialize` is answered with an error, in time, and the error has no internal details.
async fn check_refused_start(node: &Node) -> Result<()> {
    let client = Client::new(node.demo(), NEWEST);
    let params = json!({"protocolVersion": NEWEST, "capabilities": {}, "clientInfo": {"name": "s", "version": "1"}});
    let started = Instant::now();
    let response = client.send(client.message("initialize", params)).await?;
    let word = final_response(response).await?;
    ensure!(word["error"]["code"].is_i64(), "{word}");
    ensure!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    Ok(())
}

// holds: SEC-19
#[tokio::test]
async fn errors_tell_nothing_of_the_insides() -> Result<()> {
    // A command after `--` belongs to the user of the node, who gets the reason.
    let node = Node::start(&Setup::config(
        "[tenants.demo]
         auth = 'open'
         [tenants.demo.backends.main]
         kind = 'stdio'
         command = 'no-such-program-anywhere'",
    ))?;
    let client = Client::new(node.demo(), NEWEST);
    let params = json!({"protocolVersion": NEWEST, "capabilities": {}, "clientInfo": {"name": "s", "version": "1"}});
    let word = final_response(client.send(client.message("initialize", params)).await?).await?;
    let told = word.to_string();
    for inside in ["no-such-program", "os error", "/", "panicked", ".rs", "actix", "tokio"] {
        ensure!(!told.contains(inside), "{inside:?} is in {told}");
    }
    let demo = Node::start(&Setup::demo())?;
    let client = Client::open(demo.demo(), NEWEST).await?;
    let call = client.call("rh_crash", json!({}));
    let id = call["id"].clone();
    let word = final_response(client.send(call).await?).await?;
    check::is_error(&word, -32603, Id::Of(id))?;
    for inside in ["rh_crash was called", "panicked", ".rs"] {
        ensure!(!word.to_string().contains(inside), "{inside:?} is in {word}");
    }
    client.is_well().await
}

#[tokio::test]
async fn a_hostile_server_reaches_neither_the_node_nor_other_tenants() -> Result<()> {
    let servers = tools::root().join("tests/servers");
    let python = tools::python("py1");
    let backend = |tenant: &str, script: &str, env: &str| {
        format!(
            "[tenants.{tenant}]\nauth = 'open'\n[tenants.{tenant}.backends.main]\nkind = 'stdio'\n\
             command = {python:?}\nargs = [{:?}]\nenv = {{ {env} }}\n",
            servers.join(script)
        )
    };
    let (secret, key) = ("secret-of-the-node", "key-of-the-victim");
    let config = backend("victim", "odd.py", &format!("API_KEY = '{key}'"))
        + &backend("hostile", "hostile.py", "");
    let setup = Setup::config(config).with("cluster.secret", secret);
    let node = Node::start(&setup)?;
    let victim = Client::open(node.mcp("victim"), NEWEST).await?;
    ok(&victim).await?;
    let hostile = Client::open(node.mcp("hostile"), NEWEST).await?;
    let arguments = json!({"node": node.pid(), "secrets": [secret, key]});
    let result = hostile.tool("attack", arguments).await?;
    ensure!(result["content"][0]["text"] == "[]", "{result}");
    ok(&victim).await
}

/// The server that violates the protocol.
fn odd(args: &[&str]) -> Setup {
    let script = tools::root().join("tests/servers/odd.py");
    let python = tools::python("py1").display().to_string();
    let program = [python, script.display().to_string()];
    Setup::hosting(program.into_iter().chain(args.iter().map(|arg| (*arg).to_owned())))
}

async fn ok(client: &Client) -> Result<()> {
    let result = client.tool("ok", json!({})).await?;
    ensure!(result["content"][0]["text"] == "ok", "{result}");
    Ok(())
}

/// Runs a test while another session of the same server is used.
async fn beside_a_healthy_session(scenario: impl AsyncFn(&Client) -> Result<()>) -> Result<()> {
    let node = Node::start(&odd(&[]))?;
    let healthy = Client::open(node.demo(), NEWEST).await?;
    ok(&healthy).await?;
    let client = Client::open(node.demo(), NEWEST).await?;
    scenario(&client).await?;
    ok(&healthy).await.context("the healthy session")
}
