//! Real nodes and a real Redis, clients at work, and things that go wrong. A checker reads
//! what the clients saw and what the tools did.
//!
//! `SEED=… cargo test -p tests --test chaos` draws the same chances again. `KILLS=200` is the
//! long form of the first story.

#![expect(clippy::print_stdout, reason = "the figures are what it is run for")]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::Setup;
use tests::chance::Chance;
use tests::history::{History, Verdict};
use tests::load::Load;
use tests::nodes::{Nodes, port};
use tests::partition::Gate;
use tests::redis::Redis;
use tokio::time::sleep;

/// The stories take turns: each wants the whole machine.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Clients of the short form.
const CLIENTS: u64 = 10;

/// A lease is 6 s, and a node stops acting 1 s before its end.
const LEASE: Duration = Duration::from_secs(6);

/// Nodes, clients at work, and the history of both.
struct Chaos {
    redis: Redis,
    nodes: Nodes,
    load: Load,
    history: History,
    chance: Chance,
    runs: PathBuf,
    seed: u64,
    _folder: tempfile::TempDir,
}

impl Chaos {
    /// So many nodes over one Redis, under load.
    async fn start(nodes: usize) -> Result<Self> {
        let setup = |_| -> Result<Setup> { Ok(at(port()?)) };
        let setups = (0..nodes).map(setup).collect::<Result<_>>()?;
        Self::start_with(Redis::start_durable()?, setups).await
    }

    async fn start_with(redis: Redis, setups: Vec<Setup>) -> Result<Self> {
        let seed = Chance::seed();
        println!("SEED={seed}");
        let folder = tempfile::tempdir()?;
        let runs = folder.path().join("runs");
        let of_all = |setup: Setup| {
            setup
                .with("store.url", redis.url())
                .with("cluster.secret", "known to these nodes alone")
                .with("node.drain_secs", 5)
                .env("EVERYTHING_RECORD", &runs.display().to_string())
        };
        let setups = setups.into_iter().map(of_all).collect();
        let history = History::default();
        let nodes = Nodes::start(setups, history.clone()).await?;
        let load = Load::start(clients(), seed, &nodes.balancer, &history);
        // Sessions are born while a new process still waits before its first claim.
        sleep(Duration::from_secs(4)).await;
        let chance = Chance::new(seed);
        Ok(Self { redis, nodes, load, history, chance, runs, seed, _folder: folder })
    }

    async fn wait(&mut self, low_ms: u64, high_ms: u64) {
        sleep(Duration::from_millis(self.chance.between(low_ms, high_ms))).await;
    }

    /// A node that runs, by chance.
    fn any(&mut self) -> usize {
        let running = self.nodes.running();
        self.chance.pick(&running)
    }

    /// Lets the clients finish and reads the history.
    async fn judge(self) -> Result<Verdict> {
        self.load.finish().await;
        self.history.add_runs(&std::fs::read_to_string(&self.runs)?);
        let verdict = self.history.judge();
        println!("SEED={}: {verdict}", self.seed);
        ensure!(verdict.figures.results > 50, "hardly any load");
        ensure!(verdict.violations.is_empty(), "SEED={} shows violations", self.seed);
        Ok(verdict)
    }
}

/// A node whose peers come to this port.
fn at(port: u16) -> Setup {
    Setup::demo().with("cluster.listen", format!("127.0.0.1:{port}"))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn clients() -> u64 {
    number("CLIENTS").unwrap_or(CLIENTS)
}

#[tokio::test]
async fn nodes_are_killed_at_random_and_come_back_at_their_address() -> Result<()> {
    let _turn = TURN.lock().await;
    let mut chaos = Chaos::start(3).await?;
    for _ in 0..number("KILLS").unwrap_or(6) {
        let node = chaos.any();
        chaos.nodes.kill(node)?;
        chaos.wait(100, 1_500).await;
        chaos.nodes.restart(node).await?;
        chaos.wait(500, 1_500).await;
    }
    let verdict = chaos.judge().await?;
    let median = verdict.figures.gaps.get(verdict.figures.gaps.len() / 2);
    ensure!(median.is_none_or(|median| *median < 1_000), "a stream's median silence: {median:?}");
    Ok(())
}

/// What it owned is claimed by others while it sleeps; it must find that out.
#[tokio::test]
async fn an_owner_that_was_stopped_beyond_its_lease_says_nothing_new() -> Result<()> {
    let _turn = TURN.lock().await;
    let mut chaos = Chaos::start(3).await?;
    let node = chaos.any();
    chaos.nodes.freeze(node)?;
    sleep(LEASE + Duration::from_secs(3)).await;
    chaos.nodes.thaw(node)?;
    sleep(Duration::from_secs(3)).await;
    chaos.judge().await?;
    Ok(())
}

#[tokio::test]
async fn an_owner_that_was_stopped_for_a_moment_goes_on() -> Result<()> {
    let _turn = TURN.lock().await;
    let mut chaos = Chaos::start(3).await?;
    for _ in 0..2 {
        let node = chaos.any();
        chaos.nodes.freeze(node)?;
        chaos.wait(200, 3_000).await;
        chaos.nodes.thaw(node)?;
        chaos.wait(500, 1_000).await;
    }
    chaos.judge().await?;
    Ok(())
}

/// Nobody tells the balancer: only what a reset listen queue explains may fail.
#[tokio::test]
async fn nodes_that_are_asked_to_stop_lose_nothing() -> Result<()> {
    let _turn = TURN.lock().await;
    let mut chaos = Chaos::start(3).await?;
    for node in 0..3 {
        chaos.nodes.terminate(node).await?;
        chaos.nodes.restart(node).await?;
        chaos.wait(500, 1_000).await;
    }
    chaos.judge().await?;
    Ok(())
}

#[tokio::test]
async fn redis_restarts_and_stalls() -> Result<()> {
    let _turn = TURN.lock().await;
    let mut chaos = Chaos::start(3).await?;
    chaos.nodes.note(None, "Redis stalls");
    chaos.redis.freeze()?;
    chaos.wait(1_000, 3_000).await;
    chaos.redis.thaw()?;
    chaos.wait(1_000, 2_000).await;
    chaos.nodes.note(None, "Redis restarts");
    chaos.redis.restart()?;
    sleep(Duration::from_secs(4)).await;
    chaos.judge().await?;
    Ok(())
}

#[tokio::test]
async fn redis_is_away_longer_than_a_lease() -> Result<()> {
    let _turn = TURN.lock().await;
    let chaos = Chaos::start(3).await?;
    chaos.nodes.note(None, "Redis stalls");
    chaos.redis.freeze()?;
    sleep(LEASE + Duration::from_secs(2)).await;
    chaos.redis.thaw()?;
    sleep(Duration::from_secs(4)).await;
    chaos.judge().await?;
    Ok(())
}

/// Both live and both keep their leases: nothing may be claimed, only wait.
#[tokio::test]
async fn two_nodes_that_cannot_reach_each_other_wait() -> Result<()> {
    let _turn = TURN.lock().await;
    let mut gates = Vec::new();
    let mut setups = Vec::new();
    for _ in 0..2 {
        let behind = port()?;
        let gate = Gate::start(&format!("127.0.0.1:{behind}")).await?;
        setups.push(at(behind).with("cluster.advertise", &gate.address));
        gates.push(gate);
    }
    let chaos = Chaos::start_with(Redis::start_durable()?, setups).await?;
    for reset in [true, false] {
        chaos.nodes.note(None, "partition");
        gates.iter().for_each(|gate| gate.close(reset));
        sleep(Duration::from_secs(4)).await;
        gates.iter().for_each(Gate::open);
        sleep(Duration::from_secs(3)).await;
    }
    chaos.judge().await?;
    Ok(())
}
