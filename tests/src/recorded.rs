//! A cluster whose tools record each of their runs, for tests with one fault each.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use reqwest::Response;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::mcp::{Client, final_response};
use crate::node::{Node, Setup};
use crate::nodes::port;
use crate::partition::Gate;
use crate::redis::Redis;
use crate::sse::{Events, PATIENCE};

/// How long a node may hold a request that it cannot serve (`sessions.hold_ms`, 25 s), and a
/// margin. Each request must have an answer within this time.
pub const HELD: Duration = Duration::from_millis(27_500);

/// The time after which an error may be the answer to a request that was held.
pub const HELD_AT_LEAST: Duration = Duration::from_millis(24_500);

/// A Redis and nodes that use it.
#[derive(Debug)]
pub struct Recorded {
    /// The nodes in their order; `None` for a node that was killed or removed.
    pub nodes: Vec<Option<Node>>,
    /// The Redis of all nodes. It keeps its data over a restart.
    pub redis: Redis,
    runs: PathBuf,
    _folder: tempfile::TempDir,
}

impl Recorded {
    /// Starts a node for each of these setups, which share a Redis and a secret, and waits until
    /// each node may claim sessions.
    pub async fn start(setups: impl IntoIterator<Item = Setup>) -> Result<Self> {
        let setups = setups.into_iter().map(|setup| Ok((port()?, setup)));
        Self::start_at(Redis::start_durable()?, setups.collect::<Result<Vec<_>>>()?).await
    }

    /// Nodes that reach each other through gates, one for the connections to each node. The last node
    /// reaches Redis through a gate, too, which is the last one.
    pub async fn start_separable<const N: usize>(
        setup: impl Fn() -> Setup,
    ) -> Result<(Self, Vec<Gate>)> {
        let redis = Redis::start_durable()?;
        let (mut setups, mut gates) = (Vec::new(), Vec::new());
        for _ in 0..N {
            let port = port()?;
            gates.push(Gate::start(&format!("127.0.0.1:{port}")).await?);
            let address = &gates[gates.len() - 1].address;
            let setup = setup().with("cluster.advertise", address);
            setups.push((port, setup.with("store.url", redis.url())));
        }
        let way = Gate::start(&redis.address()).await?;
        if let Some((_, last)) = setups.last_mut() {
            *last = last.clone().with("store.url", format!("redis://{}", way.address));
        }
        gates.push(way);
        Ok((Self::start_at(redis, setups).await?, gates))
    }

    /// Two nodes that reach each other through gates. A gate forwards connections to its node.
    pub async fn start_apart(setup: impl Fn() -> Setup) -> Result<(Self, [Gate; 2])> {
        let ports = [port()?, port()?];
        let gates = [
            Gate::start(&format!("127.0.0.1:{}", ports[0])).await?,
            Gate::start(&format!("127.0.0.1:{}", ports[1])).await?,
        ];
        let setups = std::iter::zip(ports, &gates)
            .map(|(port, gate)| (port, setup().with("cluster.advertise", &gate.address)));
        Ok((Self::start_at(Redis::start_durable()?, setups).await?, gates))
    }

    /// As [`Recorded::start`]. Each port is the one on which the node listens for its peers.
    async fn start_at(
        redis: Redis,
        setups: impl IntoIterator<Item = (u16, Setup)>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let runs = folder.path().join("runs");
        std::fs::write(&runs, "")?;
        let mut starting = Vec::new();
        for (port, setup) in setups {
            let setup = match setup.has("store.url") {
                true => setup,
                false => setup.with("store.url", redis.url()),
            };
            let setup = setup
                .with("cluster.listen", format!("127.0.0.1:{port}"))
                .with("cluster.secret", "known to these nodes alone, no secret")
                .env("EVERYTHING_RECORD", &runs.display().to_string());
            starting.push(tokio::task::spawn_blocking(move || Node::start(&setup)));
        }
        let mut nodes = Vec::new();
        for node in starting {
            nodes.push(Some(node.await??));
        }
        let cluster = Self { nodes, redis, runs, _folder: folder };
        let links = cluster.nodes.len() - 1;
        for node in cluster.nodes.iter().flatten() {
            reaches(node, "roundhouse_stabilising", |value| value == 0.0).await?;
            reaches(node, "roundhouse_peer_links", |now| now >= links as f64).await?;
        }
        Ok(cluster)
    }

    /// A running node.
    pub fn node(&self, node: usize) -> Result<&Node> {
        self.nodes[node].as_ref().context("the node is not running")
    }

    /// Kills a node as a crash would.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        self.nodes[node].take().context("the node is not running")?.kill()
    }

    /// Waits until each running node has lost its links to the nodes that were killed. A call that
    /// arrives earlier may be sent to a dead node, and then ends with an error.
    pub async fn deaths_noticed(&self) -> Result<()> {
        let running = self.nodes.iter().flatten().count();
        for node in self.nodes.iter().flatten() {
            reaches(node, "roundhouse_peer_links", |now| now < running as f64).await?;
        }
        Ok(())
    }

    /// Opens a session that a node owns.
    pub async fn open(&self, node: usize, revision: &str) -> Result<Client> {
        Client::open_with(self.node(node)?.demo(), revision, json!({ "elicitation": {} })).await
    }

    /// The lines that servers recorded.
    pub fn recorded(&self) -> Result<Vec<String>> {
        Ok(std::fs::read_to_string(&self.runs)?.lines().map(str::to_owned).collect())
    }

    /// The number of runs of tools that were given this key.
    pub fn runs(&self, key: &str) -> Result<usize> {
        let runs = std::fs::read_to_string(&self.runs)?;
        Ok(runs.lines().filter(|line| line.split(' ').next() == Some(key)).count())
    }
}

/// Waits until the value of a metric of a node is as expected.
pub async fn reaches(node: &Node, metric: &str, is_due: impl Fn(f64) -> bool) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !node.metric(metric).await?.is_some_and(&is_due) {
        ensure!(Instant::now() < until, "{metric} is not as expected: {}", node.output());
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A call of a tool that records its runs.
pub fn call(client: &Client, tool: &str, mut arguments: Value, key: &str) -> Value {
    arguments["key"] = json!(key);
    client.call_with_progress(tool, arguments, json!(key))
}

/// The final response to a request, and how long it took; an error if none came in time.
pub async fn answer(client: &Client, message: Value) -> Result<(Value, Duration)> {
    let began = Instant::now();
    let answer = async { final_response(client.send(message).await?).await };
    let answer = tokio::time::timeout(HELD, answer).await;
    let answer = answer.with_context(|| format!("no final response within {HELD:?}"))?;
    Ok((answer?, began.elapsed()))
}

/// The text of a result.
pub fn text(response: &Value) -> Result<&str> {
    match response["result"]["content"][0]["text"].as_str() {
        Some(text) => Ok(text),
        None => bail!("no result: {}", shortened(response)),
    }
}

/// The text of a message; of a long one, its beginning and its length.
pub fn shortened(message: &Value) -> String {
    let text = message.to_string();
    match text.char_indices().nth(400) {
        Some((at, _)) => format!("{}… ({} bytes)", &text[..at], text.len()),
        None => text,
    }
}

/// Reads a stream up to its final response; returns the progress numbers before it, and the
/// response.
pub async fn follow(events: &mut Events) -> Result<(Vec<u64>, Option<Value>)> {
    let mut told = Vec::new();
    while let Some((_, message)) = events.message().await? {
        if crate::mcp::is_response(&message) {
            return Ok((told, Some(message)));
        }
        told.extend(message["params"]["progress"].as_f64().map(|number| number as u64));
    }
    Ok((told, None))
}

/// The status of a ping in a session, sent to a node.
pub async fn pinged(client: &Client, node: &Node) -> Result<u16> {
    let mut twin = client.twin();
    twin.url = node.demo();
    let sent: Response = twin.send(twin.message("ping", json!({}))).await?;
    Ok(sent.status().as_u16())
}
