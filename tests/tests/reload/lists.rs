//! Sessions whose tenant's server changes: they get the new server when the former one has ended, and
//! their clients are told that its lists may differ.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::mcp::Client;
use tests::sse::Events;
use tests::{Node, Setup, processes};

use super::{APPLIED, NEWEST, reaches, write};

const TOLD: &str = "notifications/tools/list_changed";
const RELOADS: &str = "roundhouse_settings_reloads_total{outcome=\"applied\"}";

/// A tenant whose server has one tool of this name. A call of any tool ends the server.
fn with_tool(tool: &str, mark: &str, more: &str) -> String {
    let server = format!(
        "import sys, json\n\
         tool = {{'name': '{tool}', 'inputSchema': {{'type': 'object'}}}}\n\
         info = {{'name': 'named', 'version': '1'}}\n\
         offers = {{'tools': {{'listChanged': True}}}}\n\
         hello = {{'protocolVersion': '2025-11-25', 'capabilities': offers, 'serverInfo': info}}\n\
         results = {{'initialize': hello, 'tools/list': {{'tools': [tool]}}}}\n\
         for line in sys.stdin:\n    \
             message = json.loads(line)\n    \
             if 'id' not in message: continue\n    \
             if message['method'] == 'tools/call': sys.exit(3)\n    \
             result = results.get(message['method'], {{}})\n    \
             answer = {{'jsonrpc': '2.0', 'id': message['id'], 'result': result}}\n    \
             print(json.dumps(answer), flush=True)\n"
    );
    let server = json!(server);
    format!(
        "[tenants.acme]\nauth = 'open'\n[tenants.acme.backends.main]\nkind = 'stdio'\n\
         command = 'python3'\nargs = ['-c', {server}]\n{more}\n\
         env = {{ {} = '{mark}' }}\n",
        processes::VARIABLE
    )
}

/// The names of the tools that the server has.
async fn tools(client: &Client) -> Result<Vec<String>> {
    let listed = client.request("tools/list", json!({})).await?;
    let tools = listed["result"]["tools"].as_array().with_context(|| listed.to_string())?;
    Ok(tools.iter().map(|tool| tool["name"].as_str().unwrap_or_default().to_owned()).collect())
}

async fn next_message(stream: &mut Events) -> Result<Value> {
    Ok(stream.message().await?.context("the stream ended")?.1)
}

async fn applied(node: &Node) -> Result<()> {
    reaches(node, RELOADS, 1.0).await
}

#[tokio::test]
async fn a_client_is_told_of_the_new_tools_when_its_former_server_has_ended() -> Result<()> {
    let mark = processes::mark();
    let setup = Setup::config(with_tool("former", &mark, "")).with("node.reload_secs", 1);
    let node = Node::start(&setup)?;
    let client = Client::open(node.mcp("acme"), NEWEST).await?;
    let mut stream = client.listen().await?;
    ensure!(tools(&client).await? == ["former"]);

    write(&node, &with_tool("new", &mark, ""))?;
    applied(&node).await?;
    ensure!(tools(&client).await? == ["former"], "the server that runs is kept");
    let ended = client.request("tools/call", json!({ "name": "former" })).await?;
    ensure!(ended.get("error").is_some(), "{ended}");
    ensure!(tools(&client).await? == ["new"], "{}", node.output());
    let told = next_message(&mut stream).await?;
    ensure!(told["method"] == TOLD, "{told}");

    // A start of the same server changes nothing. It would be told before the response.
    let ended = client.request("tools/call", json!({ "name": "new" })).await?;
    ensure!(ended.get("error").is_some(), "{ended}");
    ensure!(tools(&client).await? == ["new"], "{}", node.output());
    ensure!(stream.is_quiet_for(Duration::from_millis(500)).await?, "told twice");
    Ok(())
}

#[tokio::test]
async fn an_idle_server_that_keeps_nothing_ends_at_once_and_the_next_request_gets_the_new_one()
-> Result<()> {
    let (former, new) = (processes::mark(), processes::mark());
    let stateless = "stateless = true";
    let setup = Setup::config(with_tool("former", &former, stateless)).with("node.reload_secs", 1);
    let node = Node::start(&setup)?;
    let client = Client::open(node.mcp("acme"), NEWEST).await?;
    let mut stream = client.listen().await?;
    ensure!(tools(&client).await? == ["former"]);
    ensure!(!processes::marked(&former, None).is_empty());

    write(&node, &with_tool("new", &new, stateless))?;
    processes::all_gone(&former, None, APPLIED).await?;
    ensure!(processes::marked(&new, None).is_empty(), "no session needs a server yet");
    ensure!(tools(&client).await? == ["new"], "{}", node.output());
    let told = next_message(&mut stream).await?;
    ensure!(told["method"] == TOLD, "{told}");
    Ok(())
}

/// Limits and authentication are no part of the server.
#[tokio::test]
async fn a_change_that_is_not_of_the_server_replaces_no_server() -> Result<()> {
    let mark = processes::mark();
    let server = with_tool("only", &mark, "stateless = true");
    let setup = Setup::config(server.clone()).with("node.reload_secs", 1);
    let node = Node::start(&setup)?;
    let client = Client::open(node.mcp("acme"), NEWEST).await?;
    ensure!(tools(&client).await? == ["only"]);
    let before = processes::marked(&mark, None);

    write(&node, &format!("{server}[tenants.acme.limits]\nsessions_max = 7\n"))?;
    applied(&node).await?;
    ensure!(tools(&client).await? == ["only"]);
    ensure!(processes::marked(&mark, None) == before, "{}", node.output());
    Ok(())
}
