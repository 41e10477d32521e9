//! A catalog of five servers from npm and PyPI over their own Streamable HTTP, beside two that are programs.
//! What comes through a node is compared with what the same server gives without one.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::http_servers::{HttpServer, Kind};
use tests::mcp::{Client, is_response, result};
use tests::nodes::port;
use tests::proxy::Proxy;
use tests::sse::{Events, PATIENCE};
use tests::{Node, Setup, check, tools};

const NEWEST: &str = "2025-11-25";

/// A backend over HTTP, with its name as prefix.
fn over_http(name: &str, url: &str) -> String {
    format!(
        "[tenants.demo.backends.{name}]\nkind = \"http\"\nurl = \"{url}\"\n\
         allow_networks = [\"127.0.0.0/8\"]\n"
    )
}

/// A tenant with these backends, and two programs: `memory` from npm and `time` from PyPI.
fn catalog<'a>(servers: impl IntoIterator<Item = (&'a str, String)>) -> Setup {
    let node = tools::node().display().to_string();
    let memory = tools::installed("node_modules/@modelcontextprotocol/server-memory/dist/index.js");
    let python = tools::python("py2").display().to_string();
    let http: String = servers.into_iter().map(|(name, url)| over_http(name, &url)).collect();
    Setup::config(format!(
        "[tenants.demo]\nauth = \"open\"\n{http}\
         [tenants.demo.backends.memory]\nkind = \"stdio\"\ncommand = {node:?}\nargs = [{memory:?}]\n\
         [tenants.demo.backends.time]\nkind = \"stdio\"\ncommand = {python:?}\n\
         args = [\"-m\", \"mcp_server_time\", \"--local-timezone\", \"UTC\"]\n"
    ))
}

fn named(servers: &[HttpServer]) -> Vec<(&'static str, String)> {
    let names = Kind::ALL.iter().map(|kind| kind.name());
    names.zip(servers.iter().map(HttpServer::url)).collect()
}

/// A tool of each server over HTTP, and its arguments. The result is the same each time.
fn call_of(kind: Kind) -> (&'static str, Value) {
    match kind {
        Kind::Everything => ("get-structured-content", json!({ "location": "Chicago" })),
        Kind::Budget => ("get-budget-data", json!({})),
        // The result is an error: it has no browser here.
        Kind::Playwright | Kind::Browser => ("browser_network_requests", json!({ "static": true })),
        Kind::DuckDb => ("execute_query", json!({ "sql": "SELECT 40 + 2 AS answer" })),
        Kind::Excel => ("list_workbooks", json!({})),
    }
}

/// A client of a server without a node. Some servers end the lines of their streams with CRLF, and a node never
/// does, so that [`Events`] refuses it.
struct Direct(Client);

impl Direct {
    async fn open(server: &HttpServer) -> Result<Self> {
        let mut direct = Self(Client::new(server.url(), NEWEST));
        let sent = direct.0.message("initialize", direct.0.introduction(capabilities()));
        let response = direct.0.send(sent).await?;
        let session = response.headers().get("mcp-session-id");
        let session = session.map(|id| id.to_str().map(str::to_owned)).transpose()?;
        result(read(response).await?)?;
        direct.0.session = session;
        let accepted = direct.0.notify("notifications/initialized", json!({})).await?;
        ensure!(accepted.status() == 202, "{}", accepted.status());
        Ok(direct)
    }
}

/// The response to a request in a whole body.
async fn read(response: reqwest::Response) -> Result<Value> {
    let body = response.text().await?;
    let mut lines = body.lines().filter_map(|line| line.strip_prefix("data:"));
    let last = lines.rfind(|data| !data.trim().is_empty());
    serde_json::from_str(last.unwrap_or(&body)).with_context(|| body.clone())
}

/// A client, with a node or without one.
trait Asks {
    async fn request(&self, method: &str, params: Value) -> Result<Value>;

    async fn tool(&self, tool: &str, arguments: Value) -> Result<Value> {
        let params = json!({ "name": tool, "arguments": arguments });
        result(self.request("tools/call", params).await?)
    }
}

impl Asks for Client {
    async fn request(&self, method: &str, params: Value) -> Result<Value> {
        Self::request(self, method, params).await
    }
}

impl Asks for Direct {
    async fn request(&self, method: &str, params: Value) -> Result<Value> {
        read(self.0.send(self.0.message(method, params)).await?).await
    }
}

/// All entries of a list.
async fn listed(client: &impl Asks, of: &str) -> Result<Vec<Value>> {
    let (mut all, mut cursor) = (Vec::new(), None::<Value>);
    loop {
        let params = cursor.map_or(json!({}), |cursor| json!({ "cursor": cursor }));
        let page = result(client.request(&format!("{of}/list"), params).await?)?;
        all.extend(page[of].as_array().with_context(|| format!("no {of}: {page}"))?.clone());
        match page.get("nextCursor") {
            Some(next) => cursor = Some(next.clone()),
            None => return Ok(all),
        }
    }
}

/// All tools of a catalog with each kind of server and the two programs. A node answers `initialize` after 10 s
/// although a program still starts, and lists its tools later.
async fn tools_of_all(client: &Client) -> Result<Vec<Value>> {
    let names: Vec<_> =
        Kind::ALL.iter().map(|kind| kind.name()).chain(["memory", "time"]).collect();
    // On a busy machine a program starts for half a minute beside the servers of two tests.
    let until = Instant::now() + 3 * PATIENCE;
    loop {
        let all = listed(client, "tools").await?;
        let missing: Vec<_> =
            names.iter().filter(|name| of_server(&all, name).is_empty()).collect();
        if missing.is_empty() {
            return Ok(all);
        }
        ensure!(Instant::now() < until, "no tools of {missing:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The entries of one server, with their own names.
fn of_server(all: &[Value], name: &str) -> Vec<Value> {
    let prefix = format!("{name}__");
    let own = all.iter().filter_map(|entry| {
        let mut entry = entry.clone();
        entry["name"] = json!(entry["name"].as_str()?.strip_prefix(&prefix)?);
        Some(entry)
    });
    own.collect()
}

/// Capabilities for which servers offer more.
fn capabilities() -> Value {
    json!({ "sampling": {}, "elicitation": {} })
}

// holds: TOOL-01
#[tokio::test]
async fn five_servers_over_http_and_two_programs_give_what_they_give_without_a_node() -> Result<()>
{
    let servers = HttpServer::start_all().await?;
    let node = Node::start(&catalog(named(&servers)))?;
    let client = Client::open_with(node.demo(), NEWEST, capabilities()).await?;
    let all = tools_of_all(&client).await?;
    for (kind, server) in Kind::ALL.into_iter().zip(&servers) {
        let name = kind.name();
        let direct = Direct::open(server).await?;
        let own = listed(&direct, "tools").await?;
        ensure!(!own.is_empty() && of_server(&all, name) == own, "{name}: {all:?}\n{own:?}");
        let (tool, arguments) = call_of(kind);
        let due = direct.tool(tool, arguments.clone()).await.context(name)?;
        let came = client.tool(&format!("{name}__{tool}"), arguments).await.context(name)?;
        ensure!(came == due, "{name}: {came}\n{due}");
        let wrong = json!({ "name": "no-such-tool" });
        let due = direct.request("tools/call", wrong).await?;
        let wrong = json!({ "name": format!("{name}__no-such-tool") });
        let came = client.request("tools/call", wrong).await?;
        let is_refused = |response: &Value| {
            response["error"].is_object() || response["result"]["isError"] == true
        };
        ensure!(is_refused(&came) && is_refused(&due), "{name}: {came}\n{due}");
    }
    for (name, tool) in [("memory", "read_graph"), ("time", "get_current_time")] {
        let arguments = if name == "time" { json!({ "timezone": "UTC" }) } else { json!({}) };
        let came = client.tool(&format!("{name}__{tool}"), arguments).await?;
        ensure!(came["content"][0]["text"].is_string() && came["isError"] != true, "{came}");
    }
    // What one server has written by way of the node is there without it.
    let workbook = json!({ "path": "sums.xlsx" });
    client.tool("excel__create_workbook", workbook.clone()).await?;
    let direct = Direct::open(&servers[4]).await?;
    let described = direct.tool("describe_workbook", workbook.clone()).await?;
    ensure!(described["isError"] != true, "{described}");
    ensure!(described == client.tool("excel__describe_workbook", workbook).await?, "{described}");
    Ok(())
}

#[tokio::test]
async fn resources_prompts_and_completions_of_real_servers_are_those_of_the_servers() -> Result<()>
{
    let servers =
        [HttpServer::start(Kind::Everything).await?, HttpServer::start(Kind::Budget).await?];
    let urls = [("everything", servers[0].url()), ("budget", servers[1].url())];
    let node = Node::start(&catalog(urls))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let resources = listed(&client, "resources").await?;
    for (server, uri) in [
        (&servers[0], "demo://resource/static/document/architecture.md"),
        (&servers[1], "ui://budget-allocator/mcp-app.html"),
    ] {
        let direct = Direct::open(server).await?;
        for entry in listed(&direct, "resources").await? {
            ensure!(resources.contains(&entry), "no {entry} in {resources:?}");
        }
        let read = json!({ "uri": uri });
        let due = result(direct.request("resources/read", read.clone()).await?)?;
        ensure!(due["contents"][0]["text"].as_str().is_some_and(|text| text.len() > 500), "{due}");
        let came = result(client.request("resources/read", read).await?)?;
        ensure!(came == due, "{uri}");
    }
    let direct = Direct::open(&servers[0]).await?;
    let prompts = listed(&client, "prompts").await?;
    ensure!(of_server(&prompts, "everything") == listed(&direct, "prompts").await?, "{prompts:?}");
    let prompt = |name: &str| json!({ "name": name, "arguments": { "city": "Bern" } });
    let due = result(direct.request("prompts/get", prompt("args-prompt")).await?)?;
    let came = result(client.request("prompts/get", prompt("everything__args-prompt")).await?)?;
    ensure!(came == due && came.to_string().contains("Bern"), "{came}\n{due}");
    let complete = |name: &str| {
        let reference = json!({ "type": "ref/prompt", "name": name });
        json!({ "ref": reference, "argument": { "name": "department", "value": "E" } })
    };
    let method = "completion/complete";
    let due = result(direct.request(method, complete("completable-prompt")).await?)?;
    let came = result(client.request(method, complete("everything__completable-prompt")).await?)?;
    ensure!(came == due && came["completion"]["values"] == json!(["Engineering"]), "{came}\n{due}");
    Ok(())
}

/// The next request of the server; its response must not come before.
async fn question(stream: &mut Events) -> Result<Value> {
    loop {
        let (_, message) = stream.message().await?.context("the stream ended")?;
        ensure!(!is_response(&message), "no question before {message}");
        if message.get("id").is_some() {
            return Ok(message);
        }
    }
}

/// The result at the end of a stream.
async fn response(stream: &mut Events) -> Result<Value> {
    loop {
        let (_, message) = stream.message().await?.context("the stream ended")?;
        if is_response(&message) {
            return result(message);
        }
    }
}

// holds: SMP-01, ELI-01
#[tokio::test]
async fn requests_of_a_real_server_in_a_catalog_reach_the_client() -> Result<()> {
    let server = HttpServer::start(Kind::Everything).await?;
    let node = Node::start(&catalog([("everything", server.url())]))?;
    let client = Client::open_with(node.demo(), NEWEST, capabilities()).await?;
    let call = client.call("everything__trigger-sampling-request", json!({ "prompt": "What?" }));
    let mut stream = client.stream(call).await?;
    let asked = question(&mut stream).await?;
    ensure!(asked["method"] == "sampling/createMessage", "{asked}");
    let content = json!({ "type": "text", "text": "forty-two" });
    let answer = json!({ "model": "none", "role": "assistant", "content": content });
    check::accepted(client.answer(&asked["id"], answer).await?).await?;
    let came = response(&mut stream).await?;
    ensure!(came.to_string().contains("forty-two"), "{came}");
    let call = client.call("everything__trigger-elicitation-request", json!({}));
    let mut stream = client.stream(call).await?;
    let asked = question(&mut stream).await?;
    ensure!(asked["method"] == "elicitation/create", "{asked}");
    let answer = json!({ "action": "accept", "content": { "name": "Ada Lovelace" } });
    check::accepted(client.answer(&asked["id"], answer).await?).await?;
    let came = response(&mut stream).await?;
    ensure!(came.to_string().contains("Ada Lovelace"), "{came}");
    Ok(())
}

#[tokio::test]
async fn a_stream_of_a_real_server_in_a_catalog_is_resumed_and_no_step_is_lost() -> Result<()> {
    let server = HttpServer::start(Kind::Everything).await?;
    let node = Node::start(&catalog([("everything", server.url())]))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let tool = "everything__trigger-long-running-operation";
    let arguments = json!({ "duration": 2, "steps": 8 });
    let call = client.call_with_progress(tool, arguments, json!("t"));
    let mut stream = client.stream(call).await?;
    let (mut steps, mut cursor, mut last) = (Vec::new(), None, None);
    while last.is_none() {
        if steps.len() == 2 {
            // The client goes away and comes back.
            let id: String = Option::take(&mut cursor).context("no event id")?;
            drop(stream);
            tokio::time::sleep(Duration::from_millis(600)).await;
            stream = client.resume(&id).await?;
        }
        let (block, message) = stream.message().await?.context("the stream ended")?;
        cursor = block.id;
        steps.extend(message["params"]["progress"].as_f64());
        last = is_response(&message).then_some(message);
    }
    ensure!(steps == (1..=8).map(f64::from).collect::<Vec<_>>(), "{steps:?}");
    result(last.context("no response")?).map(drop)
}

// holds: CAN-04
#[tokio::test]
async fn a_cancelled_call_of_a_real_server_is_cancelled_there_and_has_no_response() -> Result<()> {
    let servers =
        [HttpServer::start(Kind::Everything).await?, HttpServer::start(Kind::Budget).await?];
    let mut taps = Vec::new();
    for server in &servers {
        taps.push(Proxy::start(server.url().trim_end_matches("/mcp"), Vec::new()).await?);
    }
    let url = |tap: &Proxy| format!("{}/mcp", tap.base);
    let node = Node::start(&catalog([("everything", url(&taps[0])), ("budget", url(&taps[1]))]))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let tool = "everything__trigger-long-running-operation";
    let call = client.call_with_progress(tool, json!({ "duration": 4, "steps": 8 }), json!("t"));
    let id = call["id"].clone();
    let mut stream = client.stream(call).await?;
    let (_, step) = stream.message().await?.context("the stream ended")?;
    ensure!(step["params"]["progress"] == 1, "{step}");
    let cancelled = json!({ "requestId": id });
    check::accepted(client.notify("notifications/cancelled", cancelled).await?).await?;
    let until = Instant::now() + PATIENCE;
    while !taps[0].sent().contains("notifications/cancelled") {
        ensure!(Instant::now() < until, "not cancelled: {}", taps[0].sent());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(!taps[1].sent().contains("notifications/cancelled"), "cancelled at another server");
    while let Some((_, message)) = stream.message().await? {
        ensure!(!is_response(&message), "{message}");
    }
    client.tool("everything__echo", json!({ "message": "after" })).await.map(drop)
}

/// While they are away, their calls get errors, and the others answer.
#[tokio::test]
async fn five_servers_over_http_end_and_come_back() -> Result<()> {
    let ports = Kind::ALL.iter().map(|_| port()).collect::<Result<Vec<_>>>()?;
    let start = async || -> Result<Vec<HttpServer>> {
        let starting: Vec<_> = Kind::ALL
            .into_iter()
            .zip(&ports)
            .map(|(kind, port)| tokio::spawn(HttpServer::start_at(kind, *port)))
            .collect();
        let mut servers = Vec::new();
        for server in starting {
            servers.push(server.await??);
        }
        Ok(servers)
    };
    let servers = start().await?;
    let node = Node::start(&catalog(named(&servers)))?;
    let client = Client::open(node.demo(), NEWEST).await?;
    let before = tools_of_all(&client).await?;
    drop(servers);
    for kind in Kind::ALL {
        let (tool, arguments) = call_of(kind);
        let name = kind.name();
        let params = json!({ "name": format!("{name}__{tool}"), "arguments": arguments });
        let came = client.request("tools/call", params).await?;
        let text = came["error"]["message"].as_str().with_context(|| format!("{name}: {came}"))?;
        ensure!(text.contains("upstream server could not be reached"), "{name}: {came}");
    }
    client.tool("memory__read_graph", json!({})).await?;
    let _servers = start().await?;
    let until = Instant::now() + PATIENCE;
    for kind in Kind::ALL {
        let (tool, arguments) = call_of(kind);
        let tool = format!("{}__{tool}", kind.name());
        loop {
            match client.tool(&tool, arguments.clone()).await {
                Ok(_) => break,
                Err(error) => ensure!(Instant::now() < until, "{tool}: {error:#}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let after = listed(&client, "tools").await?;
    ensure!(before == after, "{} tools before, {} after", before.len(), after.len());
    Ok(())
}

#[tokio::test]
async fn long_a_browser_of_a_server_in_a_catalog_opens_a_page() -> Result<()> {
    let server = HttpServer::start(Kind::Browser).await?;
    let node = Node::start(&catalog([("browser", server.url())]))?;
    let client = Client::open_with(node.demo(), NEWEST, json!({ "roots": {} })).await?;
    // The server asks for the roots of the client when it is first used. It ends a session that does not answer
    // its pings, which it sends each 3 s.
    let mut listening = client.listen().await?;
    let page = json!({ "url": "data:text/html,<h1>round</h1>" });
    let mut stream = client.stream(client.call("browser__browser_navigate", page)).await?;
    let asked = question(&mut stream).await?;
    ensure!(asked["method"] == "roots/list", "{asked}");
    check::accepted(client.answer(&asked["id"], json!({ "roots": [] })).await?).await?;
    let opened = response(&mut stream).await?;
    ensure!(opened["isError"] != true, "{opened}");
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now());
        let Some(block) = listening.next_within(left).await? else { break };
        let message = block.context("the stream ended")?.message().unwrap_or_default();
        if message["method"] == "ping" {
            check::accepted(client.answer(&message["id"], json!({})).await?).await?;
        }
    }
    let seen = client.tool("browser__browser_snapshot", json!({})).await?;
    ensure!(seen.to_string().contains("heading \\\"round\\\""), "{seen}");
    client.tool("browser__browser_close", json!({})).await.map(drop)
}
