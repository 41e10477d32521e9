//! Measures any MCP server with Streamable HTTP: the cost of a call, a session and an event,
//! and the effect of failures on its clients.
//!
//! `cargo run --release -p loadtest -- all` runs every scenario against our servers and the
//! peers, and writes a page with plots.

mod child;
mod cluster;
mod collector;
mod compare;
mod core_speed;
mod cores;
mod everything;
mod figures;
#[path = "../../tests/tests/tenant_isolation/remote.rs"]
mod hostile;
mod interrupts;
mod isolation;
mod issuer;
mod local;
mod mcp;
mod ours;
mod peers;
mod process;
mod report;
mod scenarios;
mod servers;
mod service;
#[allow(dead_code, reason = "the benchmark of first sights has more algorithms")]
#[path = "../../crates/identity/benches/first_sight/signer.rs"]
mod signer;
mod target;
mod wire;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Parser, Subcommand};

use crate::compare::{Compared, Turns};
use crate::local::LocalCluster;
use crate::report::Report;
use crate::scenarios::parts::{self, Part};
use crate::scenarios::{Load, Scenario};
use crate::target::Target;

/// The allocator of the program `roundhouse`.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures MCP servers.
#[derive(Parser)]
#[command(about, long_about = None)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs one scenario.
    Run(Run),
    /// Runs every scenario against our servers and the peers.
    All(All),
    /// Measures the calls of quiet tenants beside the floods of another one.
    Tenants(isolation::Tenants),
    /// Lists the servers that can be measured by name.
    Targets,
    /// Runs one of our servers for a measurement, until its standard input closes.
    #[command(hide = true)]
    Serve(servers::Serve),
    /// Holds a part of the sessions of another process of this program.
    #[command(hide = true)]
    Part(Part),
    /// Interrupts the programs of a core, until its standard input closes.
    #[command(hide = true)]
    Interrupt,
}

#[derive(Args)]
struct Run {
    /// The scenario to run.
    scenario: Scenario,
    /// The servers: names that `targets` lists, `http://…` URLs of running servers, or a
    /// `cluster.json`. Commas separate the URLs of several nodes of one server, and a `pid=`
    /// for each process whose cost is to be measured.
    #[arg(required = true)]
    targets: Vec<String>,
    /// Runs the servers in turns, and compares each with the last one: prints the median, the
    /// least and the greatest of the ratios of all rounds.
    #[arg(long)]
    compare: bool,
    /// The number of turns of each compared server. An additional first turn warms up.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    load: Load,
    /// The folder for `report.json`, `report.html` and the plots as SVG.
    #[arg(long, short)]
    output: Option<PathBuf>,
}

#[derive(Args)]
struct All {
    /// A peer to measure beside our servers. Without this option, all peers are measured.
    #[arg(long)]
    peer: Vec<String>,
    /// Makes every run short, and measures only the peers of `--peer`: a check that all
    /// scenarios work.
    #[arg(long)]
    smoke: bool,
    /// The folder for `report.json`, `report.html` and the plots as SVG.
    #[arg(long, short, default_value = "target/loadtest")]
    output: PathBuf,
}

/// The largest size of the table of open files; the limit, if that is lower.
const FILES_MAX: u64 = 65_536;

fn main() -> ExitCode {
    roundhouse::guard::enter();
    match done(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, only the exit code shows the failure.
            let _ = writeln!(std::io::stderr(), "loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn done(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(serve) => servers::serve(&serve),
        Command::Part(part) => runtime()?.block_on(parts::hold(&part)),
        Command::Interrupt => interrupts::interrupt(),
        Command::Targets => targets(),
        Command::Run(run) => self::run(&run),
        Command::All(all) => self::all(&all),
        Command::Tenants(tenants) => {
            cores::enter_load_core();
            raise_file_limit();
            tenants.run()
        }
    }
}

fn targets() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for name in ours::names() {
        writeln!(out, "{name:<16} {}", ours::told(name))?;
    }
    writeln!(out, "local-cluster    three nodes, Redis and nginx; nodes can be killed")?;
    for name in peers::names()? {
        writeln!(out, "{name:<16} a peer")?;
    }
    Ok(())
}

fn run(run: &Run) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let mut report = Report::new();
    if run.compare {
        ensure!(run.targets.len() > 1, "compare at least two servers");
        let opened = run.targets.iter().map(|name| open(name));
        let opened = opened.collect::<anyhow::Result<Vec<_>>>()?;
        let targets: Vec<_> = opened.iter().map(Opened::target).collect();
        let turns = Turns { scenario: run.scenario, load: &run.load, rounds: run.rounds };
        let runs = runtime.block_on(turns.take(&targets));
        let runs = runs.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let (bases, others) = runs.split_last().context("no server")?;
        report.compared = others.iter().filter_map(|runs| Compared::of(runs, bases)).collect();
        report.runs = runs.into_iter().filter_map(compare::median).collect();
    } else {
        for name in &run.targets {
            let opened = open(name)?;
            report.runs.push(runtime.block_on(run.scenario.run(opened.target(), &run.load))?);
        }
    }
    tell(&report, run.output.as_deref())
}

fn all(all: &All) -> anyhow::Result<()> {
    peers::check_folder()?;
    let peers = match all.peer.as_slice() {
        [] if all.smoke => Vec::new(),
        [] => peers::names()?,
        named => named.to_vec(),
    };
    let report = everything::run(&runtime()?, &peers, all.smoke, &all.output)?;
    tell(&report, Some(&all.output))
}

fn tell(report: &Report, folder: Option<&Path>) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(report.table().as_bytes())?;
    if let Some(folder) = folder {
        report.write(folder).with_context(|| format!("writing to {}", folder.display()))?;
        writeln!(out, "full report: {}", folder.join("report.html").display())?;
    }
    Ok(())
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    cores::enter_load_core();
    raise_file_limit();
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Raises the limit of open files: each held session needs one. The kernel's table of them gets its size here: when it
/// grows, all threads that open a file wait for about 10 ms, which would count as the latency of a call.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _as_it_is = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let last = i32::try_from(limit.min(FILES_MAX)).unwrap_or(i32::MAX) - 1;
    let _as_it_is = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last);
}

/// A server to measure. This program has started it, or it runs already.
enum Opened {
    Started(target::Started),
    Cluster(LocalCluster),
    Running(Target),
}

impl Opened {
    fn target(&self) -> &Target {
        match self {
            Self::Started(started) => &started.target,
            Self::Cluster(cluster) => &cluster.target,
            Self::Running(target) => target,
        }
    }
}

fn open(name: &str) -> anyhow::Result<Opened> {
    if name.starts_with("http://") {
        return Ok(Opened::Running(ours::running(name)?));
    }
    if name.ends_with(".json") {
        return Ok(Opened::Running(ours::cluster(Path::new(name))?));
    }
    if name == "local-cluster" {
        return Ok(Opened::Cluster(LocalCluster::start()?));
    }
    if ours::names().contains(&name) {
        return Ok(Opened::Started(ours::start(name)?));
    }
    let peers = peers::names()?;
    if peers.iter().any(|peer| peer == name) {
        return Ok(Opened::Started(peers::start(name)?));
    }
    let ours = ours::names().join(", ");
    bail!("no server `{name}`; the servers are: {ours}, local-cluster, {}", peers.join(", "))
}
