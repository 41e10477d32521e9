//! The start of servers as operators' files describe it: with what `npx` and `uvx` need, with clients
//! that give up, and with failures that have a cause.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tests::mcp::{Client, final_response};
use tests::registry::Registry;
use tests::{Node, Setup, tools};

const REVISION: &str = "2025-11-25";

#[tokio::test]
async fn npx_and_uvx_download_servers_from_a_private_registry_without_a_variable_in_the_file()
-> Result<()> {
    let registry = Registry::stand_in()?;
    let uvx = tools::installed("uv/bin/uvx");
    let mut setup = Setup::config(format!(
        "[tenants.npm]
         auth = 'open'
         [tenants.npm.backends.main]
         kind = 'stdio'
         command = 'npx'
         args = ['-y', 'stand-in-server']
         [tenants.wheel]
         auth = 'open'
         [tenants.wheel.backends.main]
         kind = 'stdio'
         command = {uvx:?}
         args = ['stand-in-server']"
    ));
    for (name, value) in registry.variables() {
        setup = setup.env(name, &value);
    }
    let node = Node::start(&setup)?;
    for tenant in ["npm", "wheel"] {
        let client = Client::open(node.mcp(tenant), REVISION).await.context(node.output())?;
        ensure!(client.welcome["serverInfo"]["name"] == tenant, "{}", client.welcome);
        let home = client.tool("home", json!({})).await?;
        let home = home["content"][0]["text"].as_str().context("no home")?;
        ensure!(home.ends_with(&format!("homes/{tenant}")), "{home}");
        // The cache that the program filled is the tenant's own.
        let cache = if tenant == "npm" { ".npm" } else { ".cache/uv" };
        ensure!(Path::new(home).join(cache).is_dir(), "{cache} is not in {home}");
    }
    Ok(())
}

/// A server that answers its first `initialize` only after a file exists, and then at once. It writes a
/// line to stderr first.
const SLOW: &str = r#"
import json, os, sys, time
print("preparing the server", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    result = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "slow", "version": "1"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

/// A node with the slow server, whose gate is closed.
fn slow_node(folder: &Path, more: &str) -> Result<Node> {
    let (script, gate) = (folder.join("slow.py"), folder.join("gate"));
    std::fs::write(&script, SLOW)?;
    let python = tools::python("py1");
    Node::start(&Setup::config(format!(
        "[tenants.acme]
         auth = 'open'
         [tenants.acme.backends.main]
         kind = 'stdio'
         command = {python:?}
         args = ['-u', {script:?}, {gate:?}]
         {more}"
    )))
}

/// Sends `initialize` and gives up after half a second.
async fn give_up(url: String) -> Result<()> {
    let client = Client::new(url, REVISION);
    let tried = client.send(client.message("initialize", client.introduction(json!({}))));
    let answer = tokio::time::timeout(Duration::from_millis(500), tried).await;
    ensure!(answer.is_err(), "it answered: {answer:?}");
    Ok(())
}

/// Waits for a line of the node's log with these words.
async fn log_line(node: &Node, words: &[&str]) -> Result<String> {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let output = node.output();
        let line = output.lines().find(|line| words.iter().all(|word| line.contains(word)));
        if let Some(line) = line {
            return Ok(line.to_owned());
        }
        ensure!(Instant::now() < until, "no line with {words:?} in\n{output}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_impatient_client_gets_the_server_that_its_first_try_started() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let node = slow_node(folder.path(), "")?;
    for tries in 1..=3 {
        give_up(node.mcp("acme")).await?;
        let until = Instant::now() + Duration::from_secs(20);
        while node.output().matches("client gave up while its stdio server").count() < tries {
            ensure!(Instant::now() < until, "{}", node.output());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    std::fs::write(folder.path().join("gate"), "")?;
    let client = Client::open(node.mcp("acme"), REVISION).await?;
    let ping = client.message("ping", json!({}));
    ensure!(client.send(ping).await?.status() == 200);
    ensure!(node.metric("roundhouse_child_starts_total").await? == Some(1.0));
    ensure!(node.metric("roundhouse_child_handovers_total").await? == Some(3.0));
    ensure!(node.metric("roundhouse_sessions").await? == Some(1.0));
    let line = log_line(&node, &["stdio server started", "tenant=\"acme\""]).await?;
    ensure!(line.contains("secs=") && line.contains("command=\"python"), "{line}");
    Ok(())
}

#[tokio::test]
async fn a_start_that_times_out_is_logged_with_the_last_lines_and_told_without_them() -> Result<()>
{
    for explain in [false, true] {
        let folder = tempfile::tempdir()?;
        let more = format!("start_secs = 1\nexplain = {explain}");
        let node = slow_node(folder.path(), &more)?;
        let client = Client::new(node.mcp("acme"), REVISION);
        let word = final_response(
            client.send(client.message("initialize", client.introduction(json!({})))).await?,
        )
        .await?;
        let told = word["error"]["message"].as_str().context("no error")?;
        ensure!(told.contains("did not answer `initialize` within 1 s"), "{told}");
        ensure!(told.contains("preparing the server") == explain, "{told}");
        let words = ["stdio server did not start", "preparing the server", "tenant=\"acme\""];
        log_line(&node, &words).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_first_client_gets_a_server_that_was_started_before_it_came() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("gate"), "")?;
    let node = slow_node(folder.path(), "warm = 1")?;
    log_line(&node, &["preparing the server"]).await?;
    let client = Client::open(node.mcp("acme"), REVISION).await?;
    let ping = client.message("ping", json!({}));
    ensure!(client.send(ping).await?.status() == 200);
    ensure!(node.metric("roundhouse_child_handovers_total").await? == Some(1.0));
    ensure!(node.stop(Duration::from_secs(20))?.success());
    Ok(())
}

#[tokio::test]
async fn a_tenant_at_its_limit_stops_the_server_that_was_idle_for_long() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("gate"), "")?;
    let more = "[tenants.acme.limits]
                children_max = 1
                [sessions]
                idle_server_secs = 1";
    let node = slow_node(folder.path(), more)?;
    let idle = Client::open(node.mcp("acme"), REVISION).await?;
    let until = Instant::now() + Duration::from_secs(20);
    // Refused until the first server has been idle for a second.
    while Client::open(node.mcp("acme"), REVISION).await.is_err() {
        ensure!(Instant::now() < until, "the idle server is not stopped");
    }
    ensure!(node.metric("roundhouse_child_starts_total").await? == Some(2.0));
    drop(idle);
    Ok(())
}
