//! Measures MCP servers: what a call, a session, an event costs, and what clients see when
//! something breaks. Any server that speaks Streamable HTTP, not only ours.
//!
//! `cargo run --release -p loadtest -- all` runs every scenario against ours and the peers
//! and writes a page with plots.

mod child;
mod cluster;
mod compare;
mod cores;
mod everything;
mod figures;
mod local;
mod mcp;
mod ours;
mod peers;
mod process;
mod report;
mod scenarios;
mod servers;
mod service;
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

/// That of the program `roundhouse`.
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
    /// Runs every scenario against our server and the peers.
    All(All),
    /// Names what can be measured.
    Targets,
    /// Serves one of our own, for a measurement; ends when its input closes.
    #[command(hide = true)]
    Serve(servers::Serve),
    /// Holds some of many sessions, for another process of this program.
    #[command(hide = true)]
    Part(Part),
}

#[derive(Args)]
struct Run {
    /// What to do.
    scenario: Scenario,
    /// Which servers: names that `targets` lists, `http://…` URLs of servers that run,
    /// or a `cluster.json`. Several nodes of one server have commas between, as has `pid=` for
    /// each process whose cost is to be measured.
    #[arg(required = true)]
    targets: Vec<String>,
    /// Runs all of them in turns, and prints what each costs beside the last: the ratio of
    /// each round, as median, least and most.
    #[arg(long)]
    compare: bool,
    /// How many turns each of several compared servers gets; one more warms up.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    load: Load,
    /// A folder for `report.json`, `report.html` and the plots as SVG.
    #[arg(long, short)]
    output: Option<PathBuf>,
}

#[derive(Args)]
struct All {
    /// Peers to measure beside ours; without any, all that there are.
    #[arg(long)]
    peer: Vec<String>,
    /// Everything short, and no peer that is not named: to see that it works.
    #[arg(long)]
    smoke: bool,
    /// A folder for `report.json`, `report.html` and the plots as SVG.
    #[arg(long, short, default_value = "target/loadtest")]
    output: PathBuf,
}

fn main() -> ExitCode {
    roundhouse::guard::enter();
    match done(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where nobody reads standard error, the exit code has to do.
            let _ = writeln!(std::io::stderr(), "loadtest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn done(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(serve) => servers::serve(&serve),
        Command::Part(part) => runtime()?.block_on(parts::hold(&part)),
        Command::Targets => targets(),
        Command::Run(run) => self::run(&run),
        Command::All(all) => self::all(&all),
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
        writeln!(out, "{} tells more", folder.join("report.html").display())?;
    }
    Ok(())
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    cores::enter_load_core();
    raise_file_limit();
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Each held session is an open file.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _as_it_is = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// A server to measure: started here, or running already.
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
    bail!("there is no server `{name}`; there is: {ours}, local-cluster, {}", peers.join(", "))
}
