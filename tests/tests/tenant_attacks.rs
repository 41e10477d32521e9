//! Clients of one tenant that use all resources they can get, and the service for another tenant.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::mcp::Client;
use tests::{Node, Setup, processes, raw, tools};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const NEWEST: &str = "2025-11-25";

/// How long a connection may be silent before the test expects no further bytes.
const QUIET: Duration = Duration::from_secs(5);

const TENANTS: &str = "
[tenants.hostile]
auth = 'open'
[tenants.hostile.backends.main]
kind = 'native'
name = 'everything'

[tenants.quiet]
auth = 'open'
[tenants.quiet.backends.main]
kind = 'native'
name = 'everything'
";

fn address(base: &str) -> Result<&str> {
    base.strip_prefix("http://").context("not http")
}

async fn connect(node: &Node) -> Result<TcpStream> {
    Ok(TcpStream::connect(address(&node.base)?).await?)
}

/// 66 clients of one tenant send nearly all of the largest body and then nothing. Together these
/// are eight times the memory of the node for incomplete bodies.
#[tokio::test]
async fn silent_bodies_of_one_tenant_do_not_delay_a_call_of_another() -> Result<()> {
    let node = Node::start(&Setup::config(TENANTS).with("front.bodies_bytes_max", 32 << 20))?;
    let quiet = Client::open(node.mcp("quiet"), NEWEST).await?;
    let hostile = Client::open(node.mcp("hostile"), NEWEST).await?;
    let session = hostile.session.clone().context("no session")?;
    let length = 4 << 20;
    let head = format!(
        "POST /hostile/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMcp-Session-Id: {session}\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    let mut bytes = head.into_bytes();
    bytes.resize(bytes.len() + length - 10, b' ');
    let mut silent = tokio::task::JoinSet::new();
    for _ in 0..66 {
        let (mut stream, bytes) = (connect(&node).await?, bytes.clone());
        silent.spawn(async move {
            let _ = stream.write_all(&bytes).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
        });
    }
    let text = "x".repeat(60_000);
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    while began.elapsed() < Duration::from_secs(6) {
        let asked = Instant::now();
        let call = quiet.tool("test_simple_text", json!({ "text": text })).await?;
        ensure!(call["content"][0]["type"] == "text", "{call}");
        slowest = slowest.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(slowest < Duration::from_secs(1), "a call took {slowest:?}");
    // The node also serves other calls of the same tenant: silent bodies get 408 to make room.
    let own = hostile.tool("test_simple_text", json!({ "text": text })).await?;
    ensure!(own["content"][0]["type"] == "text", "{own}");
    Ok(())
}

/// Posts a message as a trusted proxy does for a client at this address.
async fn forward(client: &Client, from: &str, message: Value) -> Result<reqwest::Response> {
    let request = client.http(reqwest::Method::POST).header("X-Forwarded-For", from);
    Ok(request.json(&message).send().await?)
}

#[tokio::test]
async fn a_flood_of_one_address_ends_only_its_own_unfinished_handshakes() -> Result<()> {
    let front = "[front]\ntrusted_proxies = ['private']\nsessions_per_address_per_sec = 0\n";
    let config = format!("{front}[sessions]\nunconfirmed_max = 5\n{TENANTS}");
    let node = Node::start(&Setup::config(config))?;
    let open = async |from: &str| {
        let mut client = Client::new(node.mcp("quiet"), NEWEST);
        let message = client.message("initialize", client.introduction(json!({})));
        let response = forward(&client, from, message).await?;
        let session = response.headers().get("mcp-session-id").context("no session")?;
        client.session = Some(session.to_str()?.to_owned());
        anyhow::Ok(client)
    };
    let slow = open("198.51.100.1").await?;
    // The addresses of one network of 64 bits count as one.
    let mut flood = Vec::new();
    for n in 0..20 {
        flood.push(open(&format!("2001:db8::{n}")).await?);
    }
    let confirmed = slow.notify("notifications/initialized", json!({})).await?;
    ensure!(confirmed.status() == 202, "{}", confirmed.status());
    slow.is_well().await?;
    let gone = flood[0].notify("notifications/initialized", json!({})).await?;
    ensure!(gone.status() == 404, "the oldest of the flood got {}", gone.status());
    Ok(())
}

/// A program that runs the node with a low limit of file descriptors.
fn with_descriptors(folder: &std::path::Path, count: usize) -> Result<std::path::PathBuf> {
    let script = folder.join("few-descriptors");
    let node = tools::built("roundhouse");
    let lines = format!("ulimit -n {count}\nexec '{}' \"$@\"", node.display());
    tools::write_script(&script, &lines)?;
    Ok(script)
}

#[tokio::test]
async fn idle_connections_keep_out_neither_operators_nor_new_clients() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = with_descriptors(folder.path(), 300)?;
    let node = Node::start(&Setup::config(TENANTS).program(program))?;
    let quiet = Client::open(node.mcp("quiet"), NEWEST).await?;
    let mut events = quiet.listen().await?;
    let mut idle = Vec::new();
    for n in 0..400 {
        let mut stream = connect(&node).await?;
        // Some connections have an answer, some have sent nothing, and some a part of a head.
        let sent: &[u8] = match n % 3 {
            0 => b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n",
            1 => b"GET /nowh",
            _ => b"",
        };
        stream.write_all(sent).await?;
        idle.push(stream);
    }
    for _ in 0..3 {
        let began = Instant::now();
        let health =
            raw::send(&node.admin, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", QUIET / 10);
        let health = health.await?;
        ensure!(health.status == Some(200), "{health:?}");
        ensure!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        let new =
            tokio::time::timeout(Duration::from_secs(20), Client::open(node.mcp("quiet"), NEWEST));
        new.await.context("a new client got no answer")??.is_well().await?;
    }
    // A connection with a stream is not idle.
    let call = quiet.call("test_simple_text", json!({}));
    quiet.send(call).await?;
    ensure!(tokio::time::timeout(Duration::from_millis(200), events.message()).await.is_err());
    let log = node.output();
    ensure!(log.contains("`front.connections_max` is 25000"), "{log}");
    ensure!(!log.contains("Too many open files") && !log.contains("os error 24"), "{log}");
    Ok(())
}

/// Sends a request and reads its response, up to the length that the head announces.
async fn exchange(stream: &mut TcpStream, request: &str) -> Result<String> {
    stream.write_all(request.as_bytes()).await?;
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.context("no length")?.parse()? {
                return Ok(text);
            }
        }
        let count =
            tokio::time::timeout(QUIET, stream.read_buf(&mut read)).await.context(text)??;
        ensure!(count > 0, "the connection was closed");
    }
}

fn ping(tenant: &str, session: &str) -> String {
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    format!(
        "POST /{tenant}/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\nMcp-Session-Id: {session}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// In each of three ways, more connections than there are places. The client of another tenant uses
/// its one connection before and after.
#[tokio::test]
async fn more_connections_than_places_do_not_close_the_idle_one_of_another_tenant() -> Result<()> {
    let config = format!("[front]\nconnections_max = 40\nworkers = 1\n{TENANTS}");
    let node = Node::start(&Setup::config(config))?;
    let quiet = Client::open(node.mcp("quiet"), NEWEST).await?;
    let hostile = Client::open(node.mcp("hostile"), NEWEST).await?;
    let quiet = ping("quiet", quiet.session.as_deref().context("no session")?);
    let hostile = ping("hostile", hostile.session.as_deref().context("no session")?);
    let mut kept = connect(&node).await?;
    for (sent, is_whole) in
        [("", false), ("POST /hostile/mcp HTTP/1.1\r\nHos", false), (hostile.as_str(), true)]
    {
        let first = exchange(&mut kept, &quiet).await?;
        ensure!(first.starts_with("HTTP/1.1 200"), "{first}");
        let mut flood = Vec::new();
        for _ in 0..200 {
            let mut stream = connect(&node).await?;
            // While all of the flood waited for answers, only the client's connection could be closed.
            if is_whole {
                exchange(&mut stream, sent).await?;
            } else {
                stream.write_all(sent.as_bytes()).await?;
            }
            flood.push(stream);
        }
        // The kernel keeps connections in order: an answer says that all the others were accepted.
        let newcomer = async { exchange(&mut connect(&node).await?, &hostile).await };
        tokio::time::timeout(QUIET * 4, newcomer).await.context("a newcomer has no place")??;
        let second = exchange(&mut kept, &quiet).await;
        let second = second.with_context(|| format!("after connections that sent {sent:?}"))?;
        ensure!(second.starts_with("HTTP/1.1 200"), "{second}");
    }
    Ok(())
}

const SMALL: &str = "
[node]
session_bytes_max = 33554432

[front]
bodies_bytes_max = 33554432
connections_max = 500
workers = 2

[sessions]
sessions_max = 4000
unconfirmed_max = 200
";

/// The maximum memory of a node with this file in bytes, as `check` prints it.
fn checked_memory(config: &str) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("roundhouse.toml");
    std::fs::write(&file, config)?;
    let checked =
        std::process::Command::new(tools::built("roundhouse")).arg("check").arg(&file).output()?;
    let text = String::from_utf8(checked.stdout)?;
    let line = text.lines().find_map(|line| line.strip_prefix("memory: about "));
    let mib = line.and_then(|line| line.split_once(" MiB")).context(text.clone())?.0;
    Ok(mib.parse::<u64>()? << 20)
}

/// One session with nearly the maximum number of bytes of subscriptions.
async fn subscribe_much(node: &Node) -> Result<()> {
    let client = Client::open(node.mcp("hostile"), NEWEST).await?;
    for n in 0..30 {
        let uri = format!("test://template/{n}{}/data", "u".repeat(8_000));
        let response = client.request("resources/subscribe", json!({ "uri": uri })).await?;
        ensure!(response["result"].is_object(), "{response}");
    }
    Ok(())
}

/// Opens sessions and never completes their handshake, until the task ends.
async fn open_sessions(url: String) {
    loop {
        let mut client = Client::new(url.clone(), NEWEST);
        let introduction = client.introduction(json!({}));
        let _ = client.send(introduction).await;
        client.session = None;
    }
}

#[tokio::test]
async fn a_tenant_that_fills_memory_costs_another_nothing_and_the_node_no_more_than_check_says()
-> Result<()> {
    let config = format!("{SMALL}{TENANTS}");
    let most = checked_memory(&config)?;
    let node = Node::start(&Setup::config(&*config))?;
    let quiet = Client::open(node.mcp("quiet"), NEWEST).await?;
    let mut attack = tokio::task::JoinSet::new();
    for _ in 0..4 {
        attack.spawn(open_sessions(node.mcp("hostile")));
    }
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stream = connect(&node).await?;
        let head = "POST /hostile/mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                    Accept: application/json, text/event-stream\r\nMcp-Session-Id: x\r\n\
                    Content-Length: 4000000\r\n\r\n";
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&vec![b' '; 1 << 20]).await.ok();
        silent.push(stream);
    }
    let attacked = async {
        // One tenant may use half of 32 MiB: fewer than 80 such sessions.
        let mut refused = 0;
        for _ in 0..90 {
            refused += usize::from(subscribe_much(&node).await.is_err());
        }
        refused
    };
    let mut times = Vec::new();
    let mut largest = 0;
    let calls = async {
        loop {
            let asked = Instant::now();
            let call = quiet.tool("test_simple_text", json!({})).await?;
            ensure!(call["content"][0]["type"] == "text", "{call}");
            times.push(asked.elapsed());
            largest = largest.max(processes::resident(node.pid())?);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        #[expect(unreachable_code, reason = "names the error of the block")]
        anyhow::Ok(())
    };
    let refused = tokio::select! {
        refused = attacked => refused,
        failed = calls => { failed?; 0 }
    };
    ensure!(refused > 0, "the hostile tenant got no refusal");
    let bytes = node.metric("roundhouse_session_bytes").await?.context("no metric")?;
    ensure!(bytes <= f64::from(24 << 20), "sessions keep {bytes} bytes");
    // A new client of the other tenant is served, and so is a large request.
    let newcomer = Client::open(node.mcp("quiet"), NEWEST).await?;
    newcomer.tool("test_simple_text", json!({ "text": "x".repeat(60_000) })).await?;
    attack.shutdown().await;
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    ensure!(p99 < Duration::from_millis(500), "p99 {p99:?} of {} calls", times.len());
    ensure!(largest <= most, "{largest} bytes are resident, and `check` prints {most}");
    Ok(())
}
