//! Nodes on one Redis, each in a process of its own, and their parent process.
//!
//! All run on the core of their parent: a measurement shows their total cost, not the speed
//! of three machines.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use roundhouse::settings::Encrypt;
use roundhouse::{Node, Settings};
use serde_json::json;

use crate::servers::{self, Echo, say};

/// How long Redis may take to start.
const START: Duration = Duration::from_secs(20);
/// The cluster secret. The nodes of a measurement listen on loopback only, for a minute.
const SECRET: &str = "known to the nodes of one measurement";

/// Starts Redis and `count` nodes, prints their URLs, and never returns. The processes end
/// with this one.
pub(crate) fn serve(count: usize, option: Option<&'static str>) -> anyhow::Result<()> {
    let redis = Redis::start()?;
    let nodes = (0..count)
        .map(|_| Member::start(&redis.url, option))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let urls: Vec<_> = nodes.iter().map(|node| node.url.as_str()).collect();
    say(&format!("{} store={}", urls.join(" "), redis.process.id()))?;
    loop {
        std::thread::park();
    }
}

/// Starts one node. Each node has a process of its own.
pub(crate) async fn member(
    store: &str,
    sleepy: bool,
    encrypted: bool,
) -> anyhow::Result<(String, Vec<Node>)> {
    let mut settings = Settings::default();
    settings.store.url = store.into();
    settings.cluster.peers.listen = "127.0.0.1:0".to_owned();
    settings.cluster.peers.secret = SECRET.to_owned();
    if encrypted {
        settings.cluster.peers.encrypt = Encrypt::Always;
    }
    let mut tenant = servers::tenant(json!({ "kind": "native", "name": "echo" }))?;
    if sleepy {
        settings.sessions.session.sleep_after_secs = 1;
        tenant.care.idle_stop_secs = Some(1);
    }
    settings.tenants.insert("demo".to_owned(), tenant);
    let node = servers::node(settings).handler("echo", roundhouse::native(Echo)).start().await?;
    Ok((node.url("demo"), vec![node]))
}

/// A node that was started. It ends when its standard input closes.
struct Member {
    url: String,
    _process: Child,
}

impl Member {
    fn start(store: &str, option: Option<&'static str>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "member", "--store", store]);
        command.args(option);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().context("the node's output")?;
        let mut url = String::new();
        BufReader::new(output).read_line(&mut url)?;
        ensure!(url.starts_with("http://"), "a node of the cluster did not start");
        Ok(Self { url: url.trim_end().to_owned(), _process: process })
    }
}

/// A Redis without persistence.
struct Redis {
    url: String,
    process: Child,
    /// The server ends when this closes.
    _leash: ChildStdin,
}

impl Redis {
    fn start() -> anyhow::Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/local/redis-test");
        let mut process = Command::new(script)
            .args([
                "run",
                "redis-server",
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
            .args(["--port", &port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("starting Redis; tests/setup installs it")?;
        let _leash = process.stdin.take().context("no pipe to Redis")?;
        let until = Instant::now() + START;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < until, "Redis did not start; tests/setup installs it");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Self { url: format!("redis://127.0.0.1:{port}"), process, _leash })
    }
}
