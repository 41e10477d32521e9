//! Frameworks and clients of other projects, unchanged, with three servers: the built-in demo, a server from
//! npm, and a server of a few lines. They are three tenants of one node and of three nodes behind nginx, three
//! tenants whose servers are reached over HTTP, and one catalog of servers over HTTP and programs.
//!
//! Each lists tools, calls one, calls one many times at the same time, and gets a result of a
//! megabyte, a tool's error, progress, resources and prompts, as far as it has these. `tests/setup
//! --full` installs them.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tests::deployment::Plan;
use tests::http_servers::{HttpServer, Kind};
use tests::program::Seen;
use tests::{Node, Setup, tools};
use tokio::process::Command;

/// The maximum time of one framework with all tenants.
const PATIENCE: Duration = Duration::from_secs(400);

/// The length of the large result.
const BIG: usize = 1_000_000;

/// How many calls are made at the same time.
const MANY: usize = 50;

/// How many of a framework that opens a session for each call, with a catalog: each session starts two programs
/// in Python, of which one computes for more than a second.
const MANY_SESSIONS: usize = 10;

/// A framework: its name in the adapters, the environment that has it, and what it lacks.
struct Framework {
    name: &'static str,
    runs_in: RunsIn,
    lacks: &'static [&'static str],
}

impl Framework {
    /// How many calls it makes at the same time.
    fn many(&self, servers: &Servers) -> usize {
        match self.name {
            "llama-index" if servers.is_catalog => MANY_SESSIONS,
            _ => MANY,
        }
    }
}

enum RunsIn {
    /// The environment of `tests/setup` or of its part `full` with this folder.
    Python(&'static str),
    Node,
}

use RunsIn::{Node as JavaScript, Python};

const ALL: [Framework; 14] = [
    Framework {
        name: "langchain",
        runs_in: Python("full/frameworks1"),
        lacks: &["resources", "prompts"],
    },
    Framework { name: "mcp-use", runs_in: Python("full/frameworks1"), lacks: &["progress"] },
    Framework { name: "openai-agents", runs_in: Python("full/frameworks2"), lacks: &["progress"] },
    Framework { name: "pydantic-ai", runs_in: Python("full/frameworks2"), lacks: &[] },
    Framework { name: "llama-index", runs_in: Python("full/frameworks2"), lacks: &[] },
    Framework {
        name: "google-adk",
        runs_in: Python("full/frameworks2"),
        lacks: &["resources", "read", "prompts", "prompt"],
    },
    Framework { name: "fastmcp", runs_in: Python("fastmcp"), lacks: &[] },
    Framework { name: "sdk-2", runs_in: JavaScript, lacks: &[] },
    Framework { name: "mcp-remote", runs_in: JavaScript, lacks: &[] },
    Framework { name: "inspector", runs_in: JavaScript, lacks: &["progress"] },
    Framework { name: "ai-sdk", runs_in: JavaScript, lacks: &["progress"] },
    Framework { name: "mastra", runs_in: JavaScript, lacks: &[] },
    Framework {
        name: "openai-agents-js",
        runs_in: JavaScript,
        lacks: &["progress", "prompts", "prompt"],
    },
    Framework { name: "langchain-js", runs_in: JavaScript, lacks: &["prompts", "prompt"] },
];

#[tokio::test]
async fn long_every_framework_uses_three_tenants_of_one_node() -> Result<()> {
    let node = Node::start(&Setup::config(settings()))?;
    every_framework(&Servers::tenants(|tenant| node.mcp(tenant))).await
}

#[tokio::test]
async fn long_every_framework_uses_three_tenants_of_three_nodes() -> Result<()> {
    let cluster = Plan::demo().config(settings()).start().await?;
    let servers = Servers::tenants(|tenant| cluster.mcp(tenant));
    every_framework(&servers).await
}

#[tokio::test]
async fn long_every_framework_uses_three_servers_over_http() -> Result<()> {
    let upstream = Node::start(&Setup::config(settings()))?;
    let real = HttpServer::start(Kind::Everything).await?;
    let urls =
        [("demo", upstream.demo()), ("everything", real.url()), ("plain", upstream.mcp("plain"))];
    let tenants = urls.iter().map(|(name, url)| {
        format!(
            "[tenants.{name}]\nauth = 'open'\n{}",
            over_http(&format!("{name}.backends.main"), url)
        )
    });
    let node = Node::start(&Setup::config(tenants.collect::<String>()))?;
    every_framework(&Servers::tenants(|tenant| node.mcp(tenant))).await
}

#[tokio::test]
async fn long_every_framework_uses_a_catalog_of_servers_over_http_and_programs() -> Result<()> {
    let upstream = Node::start(&Setup::demo())?;
    let real = HttpServer::start_all().await?;
    let plain = tools::root().join("tests/servers/plain.py");
    let mut settings = format!(
        "[tenants.all]
         auth = 'open'
         [tenants.all.backends.plain]
         kind = 'stdio'
         command = 'python3'
         args = [{plain:?}]
         [tenants.all.backends.time]
         kind = 'stdio'
         command = {:?}
         args = ['-m', 'mcp_server_time']
        ",
        tools::python("py2"),
    );
    settings += &over_http("all.backends.demo", &upstream.demo());
    for (kind, server) in Kind::ALL.iter().zip(&real) {
        settings += &over_http(&format!("all.backends.{}", kind.name()), &server.url());
    }
    let node = Node::start(&Setup::config(settings))?;
    every_framework(&Servers::catalog(&node.mcp("all"))).await.with_context(|| node.output())
}

/// The table of a backend over HTTP.
fn over_http(table: &str, url: &str) -> String {
    format!("[tenants.{table}]\nkind = 'http'\nurl = '{url}'\nallow_networks = ['127.0.0.0/8']\n")
}

/// Where the three servers are, and how their tools and prompts are called.
struct Servers {
    urls: [String; 3],
    is_catalog: bool,
}

/// The names of the three servers.
const NAMES: [&str; 3] = ["demo", "everything", "plain"];

impl Servers {
    /// Each is the only server of a tenant.
    fn tenants(url: impl Fn(&str) -> String) -> Self {
        Self { urls: NAMES.map(url), is_catalog: false }
    }

    /// All are behind one endpoint, with their names as prefixes.
    fn catalog(url: &str) -> Self {
        Self { urls: NAMES.map(|_| url.to_owned()), is_catalog: true }
    }

    /// The name that a tool or prompt of a server has for clients.
    fn named(&self, server: &str, name: &str) -> String {
        if self.is_catalog { format!("{server}__{name}") } else { name.to_owned() }
    }
}

/// The settings file of a node with the three tenants.
fn settings() -> String {
    let node = tools::node();
    let everything = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
    let everything = tools::installed(everything);
    let plain = tools::root().join("tests/servers/plain.py");
    format!(
        "[tenants.demo]
         auth = 'open'
         [tenants.demo.backends.main]
         kind = 'native'
         name = 'everything'
         [tenants.everything]
         auth = 'open'
         [tenants.everything.backends.main]
         kind = 'stdio'
         command = {node:?}
         args = [{everything:?}, 'stdio']
         [tenants.plain]
         auth = 'open'
         [tenants.plain.backends.main]
         kind = 'stdio'
         command = 'python3'
         args = [{plain:?}]
        "
    )
}

/// What the scenario asks of each server. `many` calls are made at the same time.
fn tenants(servers: &Servers, many: usize) -> Value {
    let [demo, everything, plain] = &servers.urls;
    let of = |server: &'static str| move |name: &str| servers.named(server, name);
    let (of_demo, of_everything, of_plain) = (of("demo"), of("everything"), of("plain"));
    json!([
        {
            "name": "demo",
            "url": demo,
            "call": {"tool": of_demo("test_simple_text"), "arguments": {}},
            "many": {
                "tool": of_demo("rh_count"),
                "times": many,
                "number": "n",
                "arguments": {"interval_ms": 1},
            },
            "big": {"tool": of_demo("rh_big"), "arguments": {"bytes": BIG}},
            "error": {"tool": of_demo("test_error_handling"), "arguments": {}},
            "progress": {"tool": of_demo("rh_count"), "arguments": {"n": 10, "interval_ms": 30}},
            "resource": "test://static-text",
            "prompt": of_demo("test_simple_prompt"),
        },
        {
            "name": "everything",
            "url": everything,
            "call": {"tool": of_everything("get-sum"), "arguments": {"a": 2, "b": 40}},
            "error": {
                "tool": of_everything("get-resource-reference"),
                "arguments": {"resourceId": 0},
            },
            "progress": {
                "tool": of_everything("trigger-long-running-operation"),
                "arguments": {"duration": 1, "steps": 4},
            },
            "resource": "demo://resource/dynamic/text/1",
            "prompt": of_everything("simple-prompt"),
        },
        {
            "name": "plain",
            "url": plain,
            "call": {"tool": of_plain("roots_heard"), "arguments": {}},
            "many": {
                "tool": of_plain("roots_heard"),
                "times": many,
                "number": null,
                "arguments": {},
            },
        },
    ])
}

/// Runs all frameworks one after another, since some give up after five seconds in which a session has to
/// open, and reports every one that fails.
async fn every_framework(servers: &Servers) -> Result<()> {
    let only = std::env::var("FRAMEWORK").ok();
    let mut failures = Vec::new();
    for framework in ALL.iter().filter(|it| only.as_ref().is_none_or(|only| only == it.name)) {
        failures.extend(check(framework, servers).await.err());
    }
    let told: Vec<String> = failures.iter().map(|failure| format!("{failure:?}")).collect();
    ensure!(failures.is_empty(), "{}", told.join("\n\n"));
    Ok(())
}

async fn check(framework: &Framework, servers: &Servers) -> Result<()> {
    let tenants = tenants(servers, framework.many(servers)).to_string();
    let seen = play(framework, &tenants).await.with_context(|| framework.name)?;
    judge(framework, servers, &seen)
        .with_context(|| format!("{}: {:?}", framework.name, short(&seen)))
}

/// Runs the scenario, and returns the lines it printed.
async fn play(framework: &Framework, tenants: &str) -> Result<Seen> {
    let folder = tools::root().join("tests/clients/frameworks");
    let (program, script): (PathBuf, _) = match framework.runs_in {
        Python(which) => (tools::installed(&format!("{which}/bin/python")), "visit.py"),
        JavaScript => (tools::node(), "visit.mjs"),
    };
    let home = tempfile::tempdir()?;
    let mut command = Command::new(program);
    command.arg(folder.join(script)).args([framework.name, tenants]);
    // No framework may send usage data, nor write into the home directory of the developer.
    command.env("HOME", home.path()).env("MCP_USE_ANONYMIZED_TELEMETRY", "false");
    command.env("MASTRA_TELEMETRY_DISABLED", "true").env("OPENAI_AGENTS_DISABLE_TRACING", "1");
    // google-adk would look for credentials on the network.
    command.env("NO_GCE_CHECK", "true").env("GOOGLE_API_USE_CLIENT_CERTIFICATE", "false");
    command.env("PATH", tools::path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.context("timed out")??;
    let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    // Some frameworks print lines of their own.
    let lines = out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !output.status.success() {
        let lines = Seen(lines);
        let err = &err[err.floor_char_boundary(err.len().saturating_sub(3_000))..];
        bail!("{}: {:?}\n{err}", output.status, short(&lines));
    }
    Ok(Seen(lines))
}

/// The lines, without the long ones.
fn short(seen: &Seen) -> Vec<String> {
    seen.0.iter().map(|line| line.to_string().chars().take(300).collect()).collect()
}

fn judge(framework: &Framework, servers: &Servers, seen: &Seen) -> Result<()> {
    let of = |kind: &str, tenant: &str| -> Result<Value> {
        let mut lines = seen.all(kind).into_iter().filter(|line| line["tenant"] == tenant);
        let line = lines.next().with_context(|| format!("no {kind} of {tenant}"))?;
        ensure!(lines.next().is_none(), "{kind} of {tenant} twice");
        Ok(line.clone())
    };
    let contains = |kind: &str, field: &str, tenant: &str, due: &str| {
        let line = of(kind, tenant)?;
        let found = match &line[field] {
            Value::String(text) => text.contains(due),
            other => other.as_array().context("no list")?.contains(&json!(due)),
        };
        ensure!(found, "{kind} of {tenant} without {due:?}");
        anyhow::Ok(())
    };
    contains("tools", "names", "demo", &servers.named("demo", "rh_count"))?;
    contains("tools", "names", "everything", &servers.named("everything", "get-sum"))?;
    contains("tools", "names", "plain", &servers.named("plain", "plain"))?;
    contains("call", "text", "demo", "This is a simple text response for testing.")?;
    contains("call", "text", "everything", "42")?;
    contains("call", "text", "plain", "0")?;
    if framework.name == "inspector" {
        for tenant in ["demo", "plain"] {
            let load = of("load", tenant)?;
            ensure!(load["ok"] == MANY && load["errors"] == 0, "{load}");
        }
    } else {
        let many = of("many", "demo")?;
        let due = framework.many(servers);
        let counts: Vec<Value> = (1..=due).map(|n| json!(format!("counted to {n}"))).collect();
        ensure!(many["texts"].as_array() == Some(&counts), "{many}");
        ensure!(of("many", "plain")?["texts"].as_array().map(Vec::len) == Some(due));
    }
    ensure!(of("big", "demo")?["length"].as_u64() >= Some(BIG as u64));
    contains("error", "text", "demo", "intentionally returns an error")?;
    contains("error", "text", "everything", "Invalid resourceId")?;

    for tenant in ["demo", "everything"] {
        for what in ["progress", "resources", "read", "prompts", "prompt"] {
            let lacks = seen.all("lacks").into_iter();
            let mut lacks = lacks.filter(|line| line["tenant"] == tenant);
            let lacks = lacks.any(|line| line["what"] == what);
            ensure!(lacks == framework.lacks.contains(&what), "{what} of {tenant}");
        }
    }
    let has = |what| !framework.lacks.contains(&what);
    if has("progress") {
        progress(framework, &of("progress", "demo")?, 10)?;
        progress(framework, &of("progress", "everything")?, 4)?;
    }
    if has("resources") {
        contains("resources", "names", "demo", "test://static-text")?;
        of("resources", "everything")?;
    }
    if has("read") {
        let due = "This is the content of the static text resource.";
        contains("read", "text", "demo", due)?;
        contains("read", "text", "everything", "Resource 1")?;
    }
    if has("prompts") {
        contains("prompts", "names", "demo", &servers.named("demo", "test_simple_prompt"))?;
        contains("prompts", "names", "everything", &servers.named("everything", "simple-prompt"))?;
    }
    if has("prompt") {
        contains("prompt", "text", "demo", "This is a simple prompt for testing.")?;
        contains("prompt", "text", "everything", "simple prompt")?;
    }
    Ok(())
}

/// Every step came once, in order.
fn progress(framework: &Framework, line: &Value, steps: u32) -> Result<()> {
    let saw = line["steps"].as_array().context("no steps")?;
    let saw: Vec<f64> = saw.iter().filter_map(Value::as_f64).collect();
    let all: Vec<f64> = (1..=steps).map(f64::from).collect();
    // mcp-remote may lose a step that comes right before the result, with any server.
    let due = match framework.name {
        "mcp-remote" if saw.len() + 1 == all.len() => &all[..saw.len()],
        _ => &all,
    };
    ensure!(saw == *due, "progress: {saw:?}");
    Ok(())
}
