//! Nodes and clients under load, faults of the nodes, and the verdict on the history of the
//! clients. The tests of chaos share this module.
//!
//! `SEED=…` repeats the random choices of a run; `CLIENTS=…` sets the number of clients.

#![expect(clippy::print_stdout, reason = "the figures are what it is run for")]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, timeout};

use crate::chance::Chance;
use crate::history::{History, Verdict, What};
use crate::load::Load;
use crate::node::Setup;
use crate::nodes::{Nodes, port};

/// A lease is 6 s, and a node stops acting 1 s before its end.
pub const LEASE: Duration = Duration::from_secs(6);

/// The maximum time for clients to finish their open requests.
const FINISH: Duration = Duration::from_secs(90);

/// The number of clients if `CLIENTS` is not set.
const CLIENTS: u64 = 10;

/// The average number of final responses of a client before the first fault.
const RESULTS_BEFORE: usize = 3;

/// Nodes, running clients, and the history of both.
#[derive(Debug)]
pub struct Chaos {
    /// The nodes that the faults affect.
    pub nodes: Nodes,
    /// The observations so far.
    pub history: History,
    /// The random numbers of the test.
    pub chance: Chance,
    load: Load,
    runs: PathBuf,
    seed: u64,
    _folder: tempfile::TempDir,
}

/// The tests of a program run one after another: each needs the whole machine.
pub async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// The setup of a node that uses the Redis at a URL and listens for its peers on a port.
pub fn at(port: u16, redis: &str) -> Setup {
    Setup::demo().with("store.url", redis).with("cluster.listen", format!("127.0.0.1:{port}"))
}

/// A number from an environment variable.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

impl Chaos {
    /// Starts this number of nodes, which share the Redis at a URL, and clients.
    pub async fn start(nodes: usize, redis: &str) -> Result<Self> {
        Self::start_from(Chance::seed(), nodes, redis).await
    }

    /// As [`Chaos::start`], with the random numbers of this seed.
    pub async fn start_from(seed: u64, nodes: usize, redis: &str) -> Result<Self> {
        let setup = |_| -> Result<Setup> { Ok(at(port()?, redis)) };
        Self::start_all(seed, (0..nodes).map(setup).collect::<Result<_>>()?).await
    }

    /// Starts nodes with these setups, and clients. Each setup contains the URL of its Redis.
    pub async fn start_with(setups: Vec<Setup>) -> Result<Self> {
        Self::start_all(Chance::seed(), setups).await
    }

    async fn start_all(seed: u64, setups: Vec<Setup>) -> Result<Self> {
        println!("SEED={seed}");
        let folder = tempfile::tempdir()?;
        let runs = folder.path().join("runs");
        let of_all = |setup: Setup| {
            setup
                .with("cluster.secret", "known to these nodes alone, no secret")
                .with("node.drain_secs", 5)
                .env("EVERYTHING_RECORD", &runs.display().to_string())
        };
        let setups = setups.into_iter().map(of_all).collect();
        let history = History::default();
        let nodes = Nodes::start(setups, history.clone()).await?;
        let clients = number("CLIENTS").unwrap_or(CLIENTS);
        let load = Load::start(clients, seed, &nodes.balancer, &history);
        let chance = Chance::new(seed);
        let chaos = Self { nodes, history, chance, load, runs, seed, _folder: folder };
        chaos.until_at_work(usize::try_from(clients)? * RESULTS_BEFORE).await?;
        Ok(chaos)
    }

    /// Waits until each node may claim sessions and clients have received this number of final
    /// responses. A new process creates sessions before it may claim any.
    async fn until_at_work(&self, final_responses: usize) -> Result<()> {
        let until = Instant::now() + FINISH;
        while self.figures("roundhouse_stabilising").await?.iter().any(|waits| *waits > 0.0)
            || self.final_responses() < final_responses
        {
            ensure!(Instant::now() < until, "the nodes or their clients did not start to work");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Waits for a random time in this range.
    pub async fn wait(&mut self, low_ms: u64, high_ms: u64) {
        sleep(Duration::from_millis(self.chance.between(low_ms, high_ms))).await;
    }

    /// A random running node.
    pub fn any(&mut self) -> usize {
        let running = self.nodes.running();
        self.chance.pick(&running)
    }

    /// The value of a metric at each running node, in the order of the nodes.
    pub async fn figures(&self, metric: &str) -> Result<Vec<f64>> {
        let mut figures = Vec::new();
        for node in self.nodes.running() {
            figures.push(self.nodes.node(node)?.metric(metric).await?.unwrap_or(0.0));
        }
        Ok(figures)
    }

    /// The number of final responses that clients have received so far.
    pub fn final_responses(&self) -> usize {
        let entries = self.history.entries();
        entries.iter().filter(|entry| matches!(entry.what, What::FinalResponse { .. })).count()
    }

    /// Lets the clients finish and reads the history.
    pub async fn judge(self) -> Result<Verdict> {
        // A client that has not finished has requests without a final response; the verdict shows
        // them.
        let finished = timeout(FINISH, self.load.finish()).await.is_ok();
        self.history.add_runs(&std::fs::read_to_string(&self.runs)?);
        let verdict = self.history.judge();
        println!("SEED={}: {verdict}", self.seed);
        ensure!(verdict.figures.results > 50, "too few results for a load");
        ensure!(verdict.violations.is_empty(), "SEED={} shows violations", self.seed);
        ensure!(finished, "SEED={}: a client did not finish", self.seed);
        Ok(verdict)
    }
}
