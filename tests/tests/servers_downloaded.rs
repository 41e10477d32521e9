//! Servers of other projects, downloaded as their pages say: from a registry behind a private
//! certificate authority, with empty caches, by clients that give up after five seconds and try
//! again. The settings file has no variables.
//!
//! The registry is a mirror of the one that this machine's npm and pip use, so these tests need one.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tests::mcp::{Client, result};
use tests::registry::{BEHIND_PROXY, Registry};
use tests::{Node, Setup, tools};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

const REVISION: &str = "2025-11-25";

/// After this time the client gives up, as openai-agents does.
const GIVES_UP: Duration = Duration::from_secs(5);

/// The maximum time until a try of a client succeeds. The servers of a test share two cores with other
/// tests, and a registry that is far away.
const PATIENCE: Duration = Duration::from_secs(600);

/// A server as its page says to start it, what its list of tools has, and a call that needs no network.
struct Server {
    name: &'static str,
    command: &'static str,
    has: &'static str,
    call: Option<(&'static str, &'static str)>,
}

/// `PLACE` is a folder of the test, which is a git repository.
const SERVERS: [Server; 15] = [
    Server {
        name: "sequential-thinking",
        command: "npx -y @modelcontextprotocol/server-sequential-thinking@2026.8.31",
        has: "sequentialthinking",
        call: Some((
            "sequentialthinking",
            r#"{"thought": "one", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1}"#,
        )),
    },
    Server {
        name: "memory",
        command: "npx -y @modelcontextprotocol/server-memory@2026.8.31",
        has: "create_entities",
        call: Some(("read_graph", "{}")),
    },
    Server {
        name: "filesystem",
        command: "npx -y @modelcontextprotocol/server-filesystem@2026.8.31 PLACE",
        has: "read_text_file",
        call: Some(("list_directory", r#"{"path": "PLACE"}"#)),
    },
    Server {
        name: "everything",
        command: "npx -y @modelcontextprotocol/server-everything@2026.8.31",
        has: "echo",
        call: Some(("echo", r#"{"message": "round"}"#)),
    },
    Server {
        name: "playwright",
        command: "npx -y @playwright/mcp@0.0.83",
        has: "browser_navigate",
        call: None,
    },
    Server {
        name: "context7",
        command: "npx -y @upstash/context7-mcp@4.1.1",
        has: "resolve-library-id",
        call: None,
    },
    Server {
        name: "kubernetes",
        command: "npx -y mcp-server-kubernetes@4.1.7",
        has: "kubectl_get",
        call: None,
    },
    Server { name: "mongodb", command: "npx -y mongodb-mcp-server@3.0.4", has: "find", call: None },
    Server {
        name: "notion",
        command: "npx -y @notionhq/notion-mcp-server@2.5.2",
        has: "API-post-search",
        call: None,
    },
    Server {
        name: "firecrawl",
        command: "npx -y firecrawl-mcp@3.26.0",
        has: "firecrawl_scrape",
        call: None,
    },
    Server {
        name: "time",
        command: "uvx mcp-server-time@2026.10.19 --local-timezone UTC",
        has: "get_current_time",
        call: Some(("get_current_time", r#"{"timezone": "UTC"}"#)),
    },
    Server {
        name: "git",
        command: "uvx mcp-server-git@2026.10.19 --repository PLACE",
        has: "git_status",
        call: Some(("git_status", r#"{"repo_path": "PLACE"}"#)),
    },
    Server { name: "fetch", command: "uvx mcp-server-fetch@2026.10.24", has: "fetch", call: None },
    // Its release cannot use the newest SDK.
    Server {
        name: "sqlite",
        command: "uvx --with mcp<2 mcp-server-sqlite@2025.4.25 --db-path PLACE/db",
        has: "read_query",
        call: Some(("list_tables", "{}")),
    },
    Server {
        name: "motherduck",
        command: "uvx mcp-server-motherduck@1.1.0 --db-path :memory: --read-write",
        has: "execute_query",
        call: Some(("execute_query", r#"{"sql": "SELECT 40 + 2"}"#)),
    },
];

#[tokio::test]
async fn long_fifteen_servers_start_behind_a_private_authority_with_empty_caches() -> Result<()> {
    let registry = Registry::mirror()?;
    let place = repository()?;
    let commands = SERVERS.iter().map(|server| (server.name, server.command));
    let node = node(commands, place.path(), &registry.variables())?;
    // `SERVER=mongodb` tries one of them.
    let only = std::env::var("SERVER").ok();
    let mut wanted = SERVERS.iter().filter(|it| only.as_ref().is_none_or(|only| only == it.name));
    let mut failures = Vec::new();
    while let Some(one) = wanted.next() {
        let one = used(&node, one, place.path());
        let other = wanted.next();
        let other = async {
            match other {
                Some(other) => used(&node, other, place.path()).await,
                None => Ok(()),
            }
        };
        let (one, other) = tokio::join!(one, other);
        failures.extend(one.err().into_iter().chain(other.err()));
    }
    let failures: Vec<String> = failures.iter().map(|failure| format!("{failure:?}")).collect();
    ensure!(failures.is_empty(), "{}\n{}", failures.join("\n\n"), node.output());
    if only.is_some() {
        return Ok(());
    }
    // The packages came through the mirror.
    let requests = registry.requests();
    for package in ["mongodb-mcp-server-3.0.4.tgz", "mcp_server_time-2026.10.19"] {
        ensure!(requests.iter().any(|path| path.contains(package)), "no request of {package}");
    }
    ensure!(
        node.metric("roundhouse_child_handovers_total").await? > Some(0.0),
        "no client gave up"
    );
    Ok(())
}

#[tokio::test]
async fn long_servers_start_through_a_proxy_that_alone_finds_the_registry() -> Result<()> {
    let registry = Registry::mirror()?;
    let proxy = Tunnel::start(registry.port).await?;
    let place = repository()?;
    let wanted = ["memory", "time"];
    let mut servers = SERVERS.iter().filter(|server| wanted.contains(&server.name));
    let commands = servers.clone().map(|server| (server.name, server.command));
    let node = node(commands, place.path(), &registry.variables_behind(proxy.port))?;
    for server in servers.by_ref() {
        let before = proxy.tunnels.load(Ordering::Relaxed);
        used(&node, server, place.path()).await.with_context(|| node.output())?;
        ensure!(proxy.tunnels.load(Ordering::Relaxed) > before, "{} without proxy", server.name);
    }
    Ok(())
}

/// What a page without `uvx` says: an environment, the server in it, and `python -m`.
const PIP: &str = "
set -e
python3 -m venv ~/time
~/time/bin/pip install --quiet mcp-server-time==2026.10.19 >&2
exec ~/time/bin/python -m mcp_server_time
";

#[tokio::test]
async fn long_python_servers_start_by_pip_and_by_uv_run() -> Result<()> {
    let registry = Registry::mirror()?;
    let place = tempfile::tempdir()?;
    std::fs::write(place.path().join("start"), PIP)?;
    let time = |name, command| Server { name, command, ..SERVERS[10] };
    let servers = [
        time("pip", "sh PLACE/start"),
        time(
            "uv-run",
            "uv run --no-project --with mcp-server-time==2026.10.19 python -m mcp_server_time",
        ),
    ];
    let commands = servers.iter().map(|server| (server.name, server.command));
    let node = node(commands, place.path(), &registry.variables())?;
    for server in &servers {
        used(&node, server, place.path()).await.with_context(|| node.output())?;
    }
    Ok(())
}

#[tokio::test]
async fn long_a_server_that_needs_a_key_fails_and_the_log_has_the_reason() -> Result<()> {
    let registry = Registry::mirror()?;
    let place = tempfile::tempdir()?;
    let command = "npx -y @modelcontextprotocol/server-brave-search@0.6.2";
    let node = node([("brave", command)].into_iter(), place.path(), &registry.variables())?;
    let until = Instant::now() + PATIENCE;
    let failure = loop {
        ensure!(Instant::now() < until, "no answer\n{}", node.output());
        match tokio::time::timeout(GIVES_UP, Client::open(node.mcp("brave"), REVISION)).await {
            Ok(Ok(_)) => bail!("it started without its key"),
            Ok(Err(failure)) => break format!("{failure:#}"),
            Err(_) => {}
        }
    };
    ensure!(failure.contains("exited with status 1"), "{failure}");
    node.logs("BRAVE_API_KEY").await?;
    Ok(())
}

/// A node with a tenant for each command, and these variables.
fn node<'a>(
    commands: impl Iterator<Item = (&'a str, &'a str)>,
    place: &Path,
    variables: &[(&'static str, String)],
) -> Result<Node> {
    let place = place.to_str().context("not UTF-8")?;
    let tenant = |(name, command): (&str, &str)| {
        let words = command.split(' ').map(|word| word.replace("PLACE", place));
        let mut words: Vec<String> = words.collect();
        let program = words.remove(0);
        format!(
            "[tenants.{name}]\nauth = 'open'\n[tenants.{name}.backends.main]\nkind = 'stdio'\n\
             command = {program:?}\nargs = {words:?}\nstart_secs = 600\n"
        )
    };
    let mut setup = Setup::config(commands.map(tenant).collect::<String>());
    let uv = tools::installed("uv/bin");
    setup = setup.env("PATH", &format!("{}:{}", uv.display(), tools::path()));
    // A machine's own variables for downloads must not replace those of the test.
    for name in ["SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_FIND_LINKS"] {
        setup = setup.env(name, "");
    }
    for (name, value) in variables {
        setup = setup.env(name, value);
    }
    Node::start(&setup)
}

/// Uses a server: a client tries until it is connected, lists the tools and calls one.
async fn used(node: &Node, server: &Server, place: &Path) -> Result<()> {
    let name = server.name;
    let (client, tries, secs) = connected(node, name).await.context(name)?;
    let list = result(client.request("tools/list", json!({})).await?).context(name)?;
    let tools = list["tools"].as_array().context("no tools")?;
    ensure!(tools.iter().any(|tool| tool["name"] == server.has), "{name}: {list}");
    if let Some((tool, arguments)) = server.call {
        let arguments = arguments.replace("PLACE", place.to_str().context("not UTF-8")?);
        let called = client.tool(tool, serde_json::from_str(&arguments)?).await.context(name)?;
        ensure!(called["isError"] != Value::Bool(true), "{name}: {called}");
    }
    ensure!(client.delete().await?.status().is_success());
    #[expect(clippy::print_stdout, reason = "what was seen belongs into the report of the test")]
    {
        println!("{name:20} {secs:5.1} s, {tries} tries, {} tools", tools.len());
    }
    Ok(())
}

/// A client that tries until it is connected, the number of its tries, and their seconds.
async fn connected(node: &Node, tenant: &str) -> Result<(Client, u32, f32)> {
    let (start, mut tries) = (Instant::now(), 1);
    loop {
        let open = Client::open(node.mcp(tenant), REVISION);
        if let Ok(client) = tokio::time::timeout(GIVES_UP, open).await {
            return Ok((client?, tries, start.elapsed().as_secs_f32()));
        }
        ensure!(start.elapsed() < PATIENCE, "it did not start in {tries} tries");
        tries += 1;
    }
}

/// A folder that is a git repository.
fn repository() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let init = Command::new("git").args(["init", "--quiet"]).arg(folder.path()).status()?;
    ensure!(init.success(), "git cannot create a repository");
    Ok(folder)
}

/// An HTTP proxy that knows one host and opens tunnels to it.
struct Tunnel {
    port: u16,
    tunnels: Arc<AtomicUsize>,
}

impl Tunnel {
    async fn start(to: u16) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let tunnels = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&tunnels);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let count = Arc::clone(&count);
                tokio::spawn(async move {
                    let _closed = carry(client, to, &count).await;
                });
            }
        });
        Ok(Self { port, tunnels })
    }
}

/// Serves one connection to the proxy.
async fn carry(client: TcpStream, to: u16, count: &AtomicUsize) -> Result<()> {
    let mut client = BufReader::new(client);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        ensure!(client.read_line(&mut head).await? > 0, "the client left");
    }
    if !head.starts_with(&format!("CONNECT {BEHIND_PROXY}:443 ")) {
        client.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n").await?;
        return Ok(());
    }
    count.fetch_add(1, Ordering::Relaxed);
    let mut registry = TcpStream::connect(("127.0.0.1", to)).await?;
    client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
    tokio::io::copy_bidirectional(&mut client, &mut registry).await?;
    Ok(())
}
