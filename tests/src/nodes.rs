//! Several nodes at addresses that stay theirs, to which things happen, and the balancer
//! before them: round robin, no affinity, the next node where nobody listens.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::history::{History, What};
use crate::node::{Node, Setup};

/// How long a node may take to stop by itself.
const STOP: Duration = Duration::from_secs(40);

/// What clients know of the nodes.
#[derive(Debug)]
pub struct Balancer {
    urls: Vec<String>,
    up: Vec<AtomicBool>,
    turn: AtomicUsize,
}

impl Balancer {
    /// The next node, of those that are not known to be down.
    pub fn next(&self) -> usize {
        let mut turn = 0;
        for _ in 0..self.urls.len() {
            turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.urls.len();
            if self.up[turn].load(Ordering::Relaxed) {
                break;
            }
        }
        turn
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.urls.len()
    }

    /// The endpoint of a node.
    pub fn url(&self, node: usize) -> &str {
        &self.urls[node]
    }

    /// Tells the balancer whether a node takes requests.
    pub fn set(&self, node: usize, is_up: bool) {
        self.up[node].store(is_up, Ordering::Relaxed);
    }
}

/// Running nodes, and what was done to them.
#[derive(Debug)]
pub struct Nodes {
    nodes: Vec<Option<Node>>,
    setups: Vec<Setup>,
    /// The balancer before them.
    pub balancer: Arc<Balancer>,
    history: History,
}

impl Nodes {
    /// Starts a node for each setup, at addresses of this process's own.
    pub async fn start(setups: Vec<Setup>, history: History) -> Result<Self> {
        let ports = setups.iter().map(|_| port()).collect::<Result<Vec<_>>>()?;
        let setups: Vec<_> = std::iter::zip(setups, &ports)
            .map(|(setup, port)| setup.listen(format!("127.0.0.1:{port}")))
            .collect();
        let urls = ports.iter().map(|port| format!("http://127.0.0.1:{port}/demo/mcp"));
        let balancer = Balancer {
            urls: urls.collect(),
            up: setups.iter().map(|_| AtomicBool::new(true)).collect(),
            turn: AtomicUsize::new(0),
        };
        let starting: Vec<_> = setups.iter().cloned().map(|s| tokio::spawn(started(s))).collect();
        let mut nodes = Vec::new();
        for node in starting {
            nodes.push(Some(node.await??));
        }
        let nodes = Self { nodes, setups, balancer: Arc::new(balancer), history };
        (0..nodes.count()).for_each(|node| nodes.note(Some(node), "starts"));
        Ok(nodes)
    }

    /// How many there are, running or not.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// A node that runs.
    pub fn node(&self, node: usize) -> Result<&Node> {
        self.nodes[node].as_ref().context("the node is not running")
    }

    /// The numbers of those that run.
    pub fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_some()).collect()
    }

    /// Writes down what is being done.
    pub fn note(&self, node: Option<usize>, what: &'static str) {
        let process = node.and_then(|node| self.nodes[node].as_ref()).map_or(0, Node::pid);
        self.history.note("", What::Fault { node, what, process });
    }

    /// Kills a node as a crash would. Nobody tells the balancer.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        self.note(Some(node), "SIGKILL");
        self.nodes[node].take().context("the node is not running")?.kill()
    }

    /// Starts a node again at its address.
    pub async fn restart(&mut self, node: usize) -> Result<()> {
        self.nodes[node] = Some(started(self.setups[node].clone()).await?);
        self.note(Some(node), "starts");
        self.balancer.set(node, true);
        Ok(())
    }

    /// Starts a node at its address with this program, and with it from then on.
    pub async fn restart_as(&mut self, node: usize, program: &Path) -> Result<()> {
        self.setups[node] = self.setups[node].clone().program(program);
        self.restart(node).await
    }

    /// Asks these nodes to stop at once and waits until all did.
    pub async fn terminate_all(&mut self, nodes: &[usize]) -> Result<()> {
        let mut stopping = Vec::new();
        for &node in nodes {
            self.note(Some(node), "SIGTERM");
            let process = self.node(node)?.pid();
            let running = self.nodes[node].take().context("the node is not running")?;
            let stop = tokio::task::spawn_blocking(move || running.stop(STOP));
            stopping.push((node, process, stop));
        }
        for (node, process, stop) in stopping {
            stop.await??;
            self.history.note("", What::Fault { node: Some(node), what: "has stopped", process });
        }
        Ok(())
    }

    /// Asks a node to stop and waits until it did. Nobody tells the balancer.
    pub async fn terminate(&mut self, node: usize) -> Result<()> {
        self.note(Some(node), "SIGTERM");
        let process = self.node(node)?.pid();
        let running = self.nodes[node].take().context("the node is not running")?;
        tokio::task::spawn_blocking(move || running.stop(STOP)).await??;
        self.history.note("", What::Fault { node: Some(node), what: "has stopped", process });
        Ok(())
    }

    /// Stops a process in the middle of whatever it does; the balancer finds it dead.
    pub fn freeze(&self, node: usize) -> Result<()> {
        self.balancer.set(node, false);
        self.note(Some(node), "SIGSTOP");
        self.node(node)?.signal(Signal::STOP)
    }

    /// Lets it go on, as if nothing had been.
    pub fn thaw(&self, node: usize) -> Result<()> {
        self.note(Some(node), "SIGCONT");
        self.node(node)?.signal(Signal::CONT)?;
        self.balancer.set(node, true);
        Ok(())
    }
}

async fn started(setup: Setup) -> Result<Node> {
    tokio::task::spawn_blocking(move || Node::start(&setup)).await?
}

/// Ports that a test process needs at most.
const PORTS: usize = 37;

/// The number of this process among those that test at the same time. Two tests that
/// `cargo nextest` runs at once have different slots; its runs have different ids.
fn share() -> usize {
    let slot = std::env::var("NEXTEST_TEST_GLOBAL_SLOT").ok().and_then(|slot| slot.parse().ok());
    let run = std::env::var("NEXTEST_RUN_ID").ok();
    let run = run.and_then(|id| usize::from_str_radix(id.get(..4)?, 16).ok());
    slot.zip(run).map_or(std::process::id() as usize, |(slot, run): (usize, usize)| run + slot)
}

/// A port below those that the system gives away, so that it is still free at a restart.
pub fn port() -> Result<u16> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Other test processes look elsewhere.
    let from = 10_000 + (share() * PORTS) % 20_000;
    loop {
        let port = from + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(port).context("no port is left")?;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
}
