//! Real servers of other projects, hosted unchanged.
//!
//! Each is initialised, listed and called through a node. It leaves no process when its session
//! ends, when the node stops, or when the node is killed. All of them run with every protection
//! that the machine grants.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::mcp::Client;
use tests::{Node, Setup, processes, tools};
use tokio::time::sleep;

/// The maximum time for a child to end: end of stdin, SIGTERM, SIGKILL.
const GONE: Duration = Duration::from_secs(15);

/// The newest revision of the SDKs.
const REVISION: &str = "2025-11-25";

#[tokio::test]
async fn server_everything_is_hosted() -> Result<()> {
    let hosted = Hosted::start(npm("server-everything", &["stdio"]))?;
    let client = hosted.client().await?;
    ensure!(client.welcome["serverInfo"]["name"] == "mcp-servers/everything", "{}", client.welcome);
    ensure!(names(&client).await?.contains(&"echo".into()));
    let echo = client.tool("echo", json!({"message": "round"})).await?;
    ensure!(text(&echo)?.contains("round"), "{echo}");
    let sum = client.tool("get-sum", json!({"a": 2, "b": 40})).await?;
    ensure!(text(&sum)?.contains("42"), "{sum}");
    hosted.ends_with(client).await
}

#[tokio::test]
async fn server_everything_reports_its_progress_through_us() -> Result<()> {
    let hosted = Hosted::start(npm("server-everything", &["stdio"]))?;
    let client = hosted.client().await?;
    let arguments = json!({"duration": 1, "steps": 4});
    let call = client.call_with_progress("trigger-long-running-operation", arguments, json!("t"));
    let mut stream = client.stream(call).await?;
    let messages = tests::mcp::messages(&stream.rest().await?);
    let steps: Vec<&Value> =
        messages.iter().map(|message| &message["params"]["progress"]).collect();
    ensure!(steps == [&json!(1), &json!(2), &json!(3), &json!(4), &Value::Null], "{messages:?}");
    hosted.ends_with(client).await
}

#[tokio::test]
async fn server_everything_is_hosted_through_npx() -> Result<()> {
    // If the package is installed, npx starts it without a request to a registry.
    let command = ["npx", "-y", "@modelcontextprotocol/server-everything", "stdio"];
    let setup = Setup::hosting(command).folder(tools::installed("node_modules").join(".."));
    let hosted = Hosted::start(setup)?;
    let client = hosted.client().await?;
    let echo = client.tool("echo", json!({"message": "round"})).await?;
    ensure!(text(&echo)?.contains("round"), "{echo}");
    hosted.ends_with(client).await
}

#[tokio::test]
async fn server_filesystem_is_hosted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("letter.txt"), "dear reader")?;
    let shown = folder.path().to_str().context("not UTF-8")?;
    let hosted = Hosted::start(npm("server-filesystem", &[shown]))?;
    let client = hosted.client().await?;
    ensure!(names(&client).await?.contains(&"read_text_file".into()));
    let path = folder.path().join("letter.txt");
    let read = client.tool("read_text_file", json!({"path": path})).await?;
    ensure!(text(&read)? == "dear reader", "{read}");
    let outside = client.tool("read_text_file", json!({"path": "/etc/hostname"})).await?;
    ensure!(outside["isError"] == true, "{outside}");
    hosted.ends_with(client).await
}

#[tokio::test]
async fn server_memory_is_hosted_with_a_memory_for_each_session_and_a_file_for_all() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("memory.jsonl");
    let setup = npm("server-memory", &[]).env("MEMORY_FILE_PATH", file.to_str().context("plain")?);
    let hosted = Hosted::start(setup)?;
    let client = hosted.client().await?;
    ensure!(names(&client).await?.contains(&"create_entities".into()));
    let ada = json!({"name": "Ada", "entityType": "person", "observations": ["counts"]});
    client.tool("create_entities", json!({"entities": [ada]})).await?;
    let other = hosted.client().await?;
    let graph = other.tool("read_graph", json!({})).await?;
    ensure!(graph["structuredContent"]["entities"][0]["name"] == "Ada", "{graph}");
    other.delete().await?;
    hosted.ends_with(client).await
}

#[tokio::test]
async fn a_python_server_is_hosted() -> Result<()> {
    let python = tools::python("py2").display().to_string();
    let setup = Setup::hosting([&python, "-m", "mcp_server_time", "--local-timezone", "UTC"]);
    let hosted = Hosted::start(setup)?;
    let client = hosted.client().await?;
    ensure!(names(&client).await?.contains(&"get_current_time".into()));
    let time = client.tool("get_current_time", json!({"timezone": "UTC"})).await?;
    ensure!(text(&time)?.contains("UTC"), "{time}");
    hosted.ends_with(client).await
}

#[tokio::test]
async fn a_python_server_is_hosted_through_uvx() -> Result<()> {
    // `tests/setup` has filled the cache, so uvx sends no request to a registry.
    let uvx = tools::installed("uv/bin/uvx").display().to_string();
    let command = [&uvx, "--offline", "--from", "mcp-server-time", "mcp-server-time"];
    let cache = tools::installed("uv-cache");
    let cache = cache.to_str().context("not UTF-8")?;
    let hosted = Hosted::start(Setup::hosting(command).env("UV_CACHE_DIR", cache))?;
    let client = hosted.client().await?;
    let time = client.tool("get_current_time", json!({"timezone": "UTC"})).await?;
    ensure!(text(&time)?.contains("UTC"), "{time}");
    hosted.ends_with(client).await
}

/// The usual commands to start servers, with the environment that each needs.
fn launchers() -> Result<[Setup; 3]> {
    let npx = Setup::hosting(["npx", "-y", "@modelcontextprotocol/server-everything", "stdio"])
        .folder(tools::installed("node_modules").join(".."));
    let uvx = tools::installed("uv/bin/uvx").display().to_string();
    let uvx = Setup::hosting([&uvx, "--offline", "--from", "mcp-server-time", "mcp-server-time"])
        .env("UV_CACHE_DIR", tools::installed("uv-cache").to_str().context("not UTF-8")?);
    let python = tools::python("py2").display().to_string();
    let python = Setup::hosting([&python, "-m", "mcp_server_time", "--local-timezone", "UTC"]);
    Ok([npx, uvx, python])
}

#[tokio::test]
async fn real_servers_start_without_a_network() -> Result<()> {
    for setup in launchers()? {
        let hosted = Hosted::start(setup.with("tenants.demo.backends.command.network", "none"))?;
        let client = hosted.client().await?;
        ensure!(!names(&client).await?.is_empty());
        client.delete().await?;
    }
    Ok(())
}

#[tokio::test]
async fn real_servers_start_with_a_list_of_what_they_may_write() -> Result<()> {
    let home = std::env::var("HOME")?;
    let caches = [
        format!("{home}/.npm"),
        format!("{home}/.local/share/uv"),
        tools::installed("uv-cache").display().to_string(),
    ];
    for setup in launchers()? {
        let key = "tenants.demo.backends.command.write_paths";
        let hosted = Hosted::start(setup.with(key, caches.join(",")))?;
        let client = hosted.client().await?;
        ensure!(!names(&client).await?.is_empty());
        client.delete().await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_protections_of_servers_are_metrics() -> Result<()> {
    let hosted = Hosted::start(Setup::hosting(["cat"]))?;
    let text = reqwest::get(format!("{}/metrics", hosted.node.admin)).await?.text().await?;
    for (protection, value) in [("pid_namespace", 1), ("own_proc", 1), ("cgroup", 0)] {
        let line = format!("roundhouse_sandbox_protection{{protection=\"{protection}\"}} {value}");
        ensure!(text.contains(&line), "no {line}");
    }
    // The log is read by a thread of its own.
    hosted.node.logs("protections of stdio servers on this machine").await?;
    Ok(())
}

// holds: STD-04
#[tokio::test]
async fn no_server_outlives_a_node_that_was_killed() -> Result<()> {
    let mut hosted = Hosted::start(npm("server-everything", &["stdio"]))?;
    let _one = hosted.client().await?;
    let _two = hosted.client().await?;
    ensure!(processes::marked(&hosted.mark, Some(hosted.node.pid())).len() >= 2);
    hosted.node.kill()?;
    processes::all_gone(&hosted.mark, None, GONE).await
}

// holds: STD-04
#[tokio::test]
async fn no_server_outlives_a_killed_node_even_below_npx() -> Result<()> {
    let command = ["npx", "-y", "@modelcontextprotocol/server-everything", "stdio"];
    let setup = Setup::hosting(command).folder(tools::installed("node_modules").join(".."));
    let mut hosted = Hosted::start(setup)?;
    let client = hosted.client().await?;
    client.tool("echo", json!({"message": "round"})).await?;
    hosted.node.kill()?;
    processes::all_gone(&hosted.mark, None, GONE).await
}

#[tokio::test]
async fn no_server_outlives_a_node_that_was_killed_while_it_started_one() -> Result<()> {
    // A server that ends slowly, and starts a grandchild.
    let slow = "sleep 300 & sleep 300";
    let mut hosted = Hosted::start(Setup::hosting(["sh", "-c", slow]))?;
    let client = Client::new(hosted.node.demo(), REVISION);
    let message = client.message(
        "initialize",
        json!({"protocolVersion": REVISION, "capabilities": {},
        "clientInfo": {"name": "scenarios", "version": "1"}}),
    );
    let asked = tokio::spawn(async move { client.send(message).await.map(drop) });
    while processes::marked(&hosted.mark, Some(hosted.node.pid())).len() < 3 {
        sleep(Duration::from_millis(10)).await;
    }
    hosted.node.kill()?;
    asked.abort();
    processes::all_gone(&hosted.mark, None, GONE).await
}

/// A node whose children have a mark in their environment.
struct Hosted {
    node: Node,
    mark: String,
}

impl Hosted {
    fn start(setup: Setup) -> Result<Self> {
        let mark = processes::mark();
        let setup = setup.with("node.sandbox", "required").env(processes::VARIABLE, &mark);
        let node = Node::start(&setup)?;
        Ok(Self { node, mark })
    }

    async fn client(&self) -> Result<Client> {
        Client::open(self.node.demo(), REVISION).await
    }

    /// Ends the session, then the node; no process may be left after either of them.
    async fn ends_with(self, client: Client) -> Result<()> {
        let ended = client.delete().await?.status();
        ensure!(ended.is_success(), "DELETE got {ended}");
        processes::all_gone(&self.mark, Some(self.node.pid()), GONE)
            .await
            .context("after DELETE")?;
        let _again = self.client().await?;
        let status = self.node.stop(GONE)?;
        ensure!(status.success(), "the node ends with {status}");
        processes::all_gone(&self.mark, None, GONE).await.context("after SIGTERM")
    }
}

/// A server from npm, started without npx.
fn npm(name: &str, args: &[&str]) -> Setup {
    let script =
        tools::installed(&format!("node_modules/@modelcontextprotocol/{name}/dist/index.js"));
    let program: [&Path; 2] = [&tools::node(), &script];
    let program = program.iter().map(|path| path.display().to_string());
    Setup::hosting(program.chain(args.iter().map(|arg| (*arg).to_owned())))
}

/// The names of all tools.
async fn names(client: &Client) -> Result<Vec<String>> {
    let list = tests::mcp::result(client.request("tools/list", json!({})).await?)?;
    let tools = list["tools"].as_array().context("no tools")?;
    Ok(tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect())
}

/// The text of a tool's result.
fn text(result: &Value) -> Result<&str> {
    result["content"][0]["text"].as_str().with_context(|| format!("no text: {result}"))
}
