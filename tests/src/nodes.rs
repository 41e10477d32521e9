//! Several nodes with fixed addresses, the faults of these nodes, and a balancer: round robin, no
//! affinity, and the next node if no process listens at an address.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::history::{History, What};
use crate::node::{Node, Setup};
use crate::ports;

/// The maximum time for a node to stop after a request to do so.
const STOP: Duration = Duration::from_secs(40);

/// The addresses of the nodes, and which of them take requests.
#[derive(Debug)]
pub struct Balancer {
    urls: Vec<String>,
    up: Vec<AtomicBool>,
    turn: AtomicUsize,
}

impl Balancer {
    /// The endpoint of a real balancer, which is the only node here.
    pub fn real(url: String) -> Self {
        Self { urls: vec![url], up: vec![AtomicBool::new(true)], turn: AtomicUsize::new(0) }
    }

    /// The next node that is not known to be down.
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

    /// The number of nodes.
    pub fn count(&self) -> usize {
        self.urls.len()
    }

    /// The endpoint of a node.
    pub fn url(&self, node: usize) -> &str {
        &self.urls[node]
    }

    /// Sets whether a node takes requests.
    pub fn set(&self, node: usize, is_up: bool) {
        self.up[node].store(is_up, Ordering::Relaxed);
    }
}

/// The nodes of a test, whose faults the history records.
#[derive(Debug)]
pub struct Nodes {
    nodes: Vec<Option<Node>>,
    setups: Vec<Setup>,
    /// The balancer of these nodes.
    pub balancer: Arc<Balancer>,
    history: History,
}

impl Nodes {
    /// Starts a node for each setup, at addresses that only this process uses.
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

    /// The number of nodes, running or not.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// A running node.
    pub fn node(&self, node: usize) -> Result<&Node> {
        self.nodes[node].as_ref().context("the node is not running")
    }

    /// The numbers of the running nodes.
    pub fn running(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_some()).collect()
    }

    /// Records a fault.
    pub fn note(&self, node: Option<usize>, what: &'static str) {
        let process = node.and_then(|node| self.nodes[node].as_ref()).map_or(0, Node::pid);
        self.history.note("", What::Fault { node, what, process });
    }

    /// Kills a node as a crash would, and waits until its process has ended. The balancer is not informed.
    pub fn kill(&mut self, node: usize) -> Result<()> {
        self.note(Some(node), "SIGKILL");
        let mut killed = self.nodes[node].take().context("the node is not running")?;
        let process = killed.pid();
        killed.kill()?;
        self.history.note("", What::Fault { node: Some(node), what: "has died", process });
        Ok(())
    }

    /// Starts a node again at its address.
    pub async fn restart(&mut self, node: usize) -> Result<()> {
        self.nodes[node] = Some(started(self.setups[node].clone()).await?);
        self.note(Some(node), "starts");
        self.balancer.set(node, true);
        Ok(())
    }

    /// Starts a node at its address with this program, which later restarts use as well.
    pub async fn restart_as(&mut self, node: usize, program: &Path) -> Result<()> {
        self.setups[node] = self.setups[node].clone().program(program);
        self.restart(node).await
    }

    /// Asks these nodes to stop at the same time and waits until all have stopped.
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

    /// Asks a node to stop and waits until it has stopped. The balancer is not informed.
    pub async fn terminate(&mut self, node: usize) -> Result<()> {
        self.note(Some(node), "SIGTERM");
        let process = self.node(node)?.pid();
        let running = self.nodes[node].take().context("the node is not running")?;
        tokio::task::spawn_blocking(move || running.stop(STOP)).await??;
        self.history.note("", What::Fault { node: Some(node), what: "has stopped", process });
        Ok(())
    }

    /// Stops a process at any point of its work (SIGSTOP); for the balancer, the node is down.
    pub fn freeze(&self, node: usize) -> Result<()> {
        self.balancer.set(node, false);
        self.note(Some(node), "SIGSTOP");
        self.node(node)?.signal(Signal::STOP)
    }

    /// Continues a stopped process (SIGCONT).
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

/// A port that is still free when the process that listens on it is restarted.
pub fn port() -> Result<u16> {
    ports::free_port().context("no port is left; other test processes have all of them")
}
