//! A catalog on three nodes behind nginx, with clients under load: processes of its servers are killed in mid-call,
//! nodes are killed and drained, and Redis does not answer. A checker reads what clients saw and which tools ran.
//!
//! `SEED=… cargo test -p tests --test chaos_catalogs` repeats the random choices; `FAULTS=100` is the long form.

#![expect(clippy::print_stdout, reason = "the figures are what it is run for")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tests::chance::Chance;
use tests::chaos::{LEASE, number};
use tests::deployment::{Deployment, Plan};
use tests::history::judge::{SERVER_BACK, SERVER_ENDS};
use tests::history::{History, What};
use tests::load::{Load, Servers};
use tests::nodes::{Balancer, port};
use tests::{Node, Setup, processes, tools};
use tokio::time::{sleep, timeout};

/// A server over HTTP, which gives its events ids, and one that is a program.
const SERVERS: Servers = Servers { prefixes: &["far__", "prog__"], report_changes: false };

/// The number of clients if `CLIENTS` is not set.
const CLIENTS: u64 = 8;

/// The maximum time for clients to finish their open requests.
const FINISH: Duration = Duration::from_secs(90);

/// The faults, each of which happens at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Some processes of the program end, each of one session.
    Programs,
    /// The server over HTTP ends and starts again at its address. It keeps no session.
    Remote,
    /// A node is killed and starts again.
    Kill,
    /// A node is drained and starts again.
    Drain,
    /// Redis does not answer for 1 to 3 s.
    Redis,
    /// Redis does not answer for longer than a lease.
    RedisLong,
}

const FAULTS: [Fault; 6] =
    [Fault::Programs, Fault::Remote, Fault::Kill, Fault::Drain, Fault::Redis, Fault::RedisLong];

/// Three nodes behind nginx, and the servers of their catalog.
struct Scene {
    cluster: Deployment,
    remote: Option<Node>,
    remote_setup: Setup,
    mark: String,
    history: History,
    chance: Chance,
}

#[tokio::test]
async fn servers_of_a_catalog_nodes_and_redis_fail_behind_nginx() -> Result<()> {
    let seed = Chance::seed();
    println!("SEED={seed}");
    let folder = tempfile::tempdir()?;
    let runs = folder.path().join("runs");
    std::fs::write(&runs, "")?;
    let mut scene = Scene::start(seed, &runs).await?;
    let balancer = Arc::new(Balancer::real(scene.cluster.demo()));
    let clients = number("CLIENTS").unwrap_or(CLIENTS);
    let load = Load::start_at(SERVERS, clients, seed, &balancer, &scene.history);
    scene.wait(2_000, 3_000).await;
    for fault in scene.plan() {
        println!("{fault:?}");
        scene.strike(fault).await.with_context(|| format!("SEED={seed}: {fault:?}"))?;
        scene.wait(500, 1_500).await;
    }
    let finished = timeout(FINISH, load.finish()).await.is_ok();
    let history = &scene.history;
    history.add_runs(&std::fs::read_to_string(&runs)?);
    let verdict = history.judge();
    println!("SEED={seed}: {verdict}");
    ensure!(verdict.violations.is_empty(), "SEED={seed} shows violations");
    ensure!(finished, "SEED={seed}: a client did not finish");
    ensure!(verdict.figures.results > 100, "too few results for a load");
    // Something was lost with its server or its node, or the faults came at no call.
    ensure!(verdict.figures.errors > 0, "no call was in flight when a server ended");
    Ok(())
}

impl Scene {
    async fn start(seed: u64, runs: &Path) -> Result<Self> {
        let remote_setup = Setup::demo()
            .listen(format!("127.0.0.1:{}", port()?))
            .env("EVERYTHING_RECORD", &runs.display().to_string());
        let remote = Node::start(&remote_setup)?;
        let mark = processes::mark();
        let program = tools::built("everything").display().to_string();
        let settings = format!(
            "[tenants.demo]\nauth = \"open\"\n\
             [tenants.demo.backends.far]\nkind = \"http\"\nurl = \"{}\"\n\
             allow_networks = [\"127.0.0.0/8\"]\n\
             [tenants.demo.backends.prog]\nkind = \"stdio\"\ncommand = {program:?}\n\
             [tenants.demo.backends.prog.env]\nEVERYTHING_RECORD = {runs:?}\n{} = {mark:?}\n",
            remote.demo(),
            processes::VARIABLE,
        );
        let cluster = Plan::demo().config(settings).with("node.drain_secs", 5).start().await?;
        let chance = Chance::new(seed);
        let history = History::default();
        let scene = Self { cluster, remote: Some(remote), remote_setup, mark, history, chance };
        for node in scene.cluster.members()? {
            scene.note("starts", node.pid);
        }
        Ok(scene)
    }

    /// Each fault once, in a random order, and then random ones.
    fn plan(&mut self) -> Vec<Fault> {
        let mut left = FAULTS.to_vec();
        let mut plan = Vec::new();
        while !left.is_empty() {
            let at = self.chance.between(0, left.len() as u64 - 1);
            plan.push(left.swap_remove(usize::try_from(at).unwrap_or(0)));
        }
        let more = number("FAULTS").unwrap_or(0).saturating_sub(FAULTS.len() as u64);
        plan.extend((0..more).map(|_| self.chance.pick(&FAULTS)));
        plan
    }

    /// Records a fault of a node, which clients see as one of nginx.
    fn note(&self, what: &'static str, process: u32) {
        self.history.note("", What::Fault { node: Some(0), what, process });
    }

    /// Records a fault of another process.
    fn note_other(&self, what: &'static str) {
        self.history.note("", What::Fault { node: None, what, process: 0 });
    }

    async fn wait(&mut self, low_ms: u64, high_ms: u64) {
        sleep(Duration::from_millis(self.chance.between(low_ms, high_ms))).await;
    }

    async fn strike(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Programs => {
                let name = tools::built("everything").display().to_string();
                let running = processes::marked(&self.mark, None);
                let mut of_server: Vec<u32> = running
                    .iter()
                    .filter_map(|line| line.split_once(' '))
                    .filter(|(_, command)| command.starts_with(&name))
                    .filter_map(|(pid, _)| pid.parse().ok())
                    .collect();
                ensure!(!of_server.is_empty(), "no program runs");
                while of_server.len() > usize::try_from(CLIENTS / 2)? {
                    let at = self.chance.between(0, of_server.len() as u64 - 1);
                    of_server.swap_remove(usize::try_from(at)?);
                }
                self.note_other(SERVER_ENDS);
                for pid in of_server {
                    let pid = Pid::from_raw(pid.try_into()?).context("no pid")?;
                    // It may have ended with its session.
                    let _gone = kill_process(pid, Signal::KILL);
                }
            }
            Fault::Remote => {
                self.note_other(SERVER_ENDS);
                self.remote.take().context("no server")?.kill()?;
                self.wait(0, 1_500).await;
                let setup = self.remote_setup.clone();
                let start = tokio::task::spawn_blocking(move || Node::start(&setup));
                self.remote = Some(start.await??);
                self.note_other(SERVER_BACK);
            }
            Fault::Kill => {
                let node = self.chance.pick(&self.cluster.members()?);
                self.note("SIGKILL", node.pid);
                kill_process(Pid::from_raw(node.pid.try_into()?).context("no pid")?, Signal::KILL)?;
                processes::ended(node.pid, Duration::from_secs(10)).await?;
                self.note("has died", node.pid);
                self.wait(500, 2_000).await;
                self.cluster.start(&node.name).await?;
                self.started(&node.name)?;
                // Until then the node claims no session of another one.
                sleep(Duration::from_millis(3_500)).await;
            }
            Fault::Drain => {
                let node = self.chance.pick(&self.cluster.members()?);
                self.note("SIGTERM", node.pid);
                self.cluster.restart(&node.name).await?;
                self.note("has stopped", node.pid);
                self.started(&node.name)?;
            }
            Fault::Redis | Fault::RedisLong => {
                let pid = self.cluster.redis()?.0;
                let pid = Pid::from_raw(pid.try_into()?).context("no pid")?;
                self.note_other("Redis stalls");
                kill_process(pid, Signal::STOP)?;
                self.wait(1_000, 3_000).await;
                if fault == Fault::RedisLong {
                    sleep(LEASE).await;
                }
                kill_process(pid, Signal::CONT)?;
                self.note_other("Redis goes on");
                if fault == Fault::RedisLong {
                    sleep(Duration::from_secs(3)).await;
                }
            }
        }
        Ok(())
    }

    fn started(&self, name: &str) -> Result<()> {
        let members = self.cluster.members()?;
        let node = members.iter().find(|node| node.name == name).context("no such node")?;
        self.note("starts", node.pid);
        Ok(())
    }
}
