//! Measures MCP servers: what a call, a session, an event costs, and what clients see when
//! something breaks. Any server that speaks Streamable HTTP, not only ours.
//!
//! `cargo run --release -p loadtest -- all` runs every scenario against ours and the peers
//! and writes a page with plots; see `docs/performance.md`.

mod compare;
mod figures;
mod mcp;
mod ours;
mod peers;
mod process;
mod report;
mod scenarios;
mod servers;
mod target;
mod wire;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};

use crate::compare::Compared;
use crate::figures::Figures;
use crate::report::{Machine, Report};
use crate::scenarios::{Load, Scenario};
use crate::target::Target;

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
    /// Runs every scenario against our server and the peers, in turns.
    All(All),
    /// Names what can be measured.
    Targets,
    /// Serves one of our own, for a measurement; ends when its input closes.
    #[command(hide = true)]
    Serve {
        /// Which.
        which: servers::Which,
    },
}

#[derive(Args)]
struct Run {
    /// What to do.
    scenario: Scenario,
    /// Which servers: names that `targets` lists, `http://…` URLs of servers that run
    /// (several nodes of one: with commas), or a `cluster.json`.
    #[arg(required = true)]
    targets: Vec<String>,
    /// Runs two servers in turns and prints the ratio of each pair.
    #[arg(long)]
    compare: bool,
    /// How many turns each of two compared servers gets; one more warms up.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The process that serves a URL, so that its cost is measured, too; may be repeated.
    #[arg(long)]
    pid: Vec<u32>,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct All {
    /// Peers to measure beside ours; without any, all.
    #[arg(long)]
    peer: Vec<String>,
    /// Everything short, to see that it works.
    #[arg(long)]
    smoke: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct Output {
    /// Writes what was found: `.json` for programs, `.html` for people; may be repeated.
    #[arg(long, short)]
    output: Vec<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Serve { which } => servers::serve(which),
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
    for name in peers::names()? {
        writeln!(out, "{name:<16} a peer")?;
    }
    Ok(())
}

fn run(run: &Run) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let mut report = empty_report();
    if run.compare {
        let [a, b] = run.targets.as_slice() else { anyhow::bail!("compare two servers") };
        let pairs = pairs(&runtime, run, [a, b])?;
        report.compared.extend(Compared::of(&pairs));
        report.runs.extend(pairs.into_iter().flat_map(|(a, b)| [a, b]));
    } else {
        for name in &run.targets {
            let opened = open(name, &run.pid)?;
            report.runs.push(runtime.block_on(run.scenario.run(opened.target(), &run.load))?);
        }
    }
    tell(&report, &run.output)
}

/// Both take turns; the first pair warms up and is forgotten.
fn pairs(
    runtime: &tokio::runtime::Runtime,
    run: &Run,
    names: [&str; 2],
) -> anyhow::Result<Vec<(Figures, Figures)>> {
    let [a, b] = [open(names[0], &run.pid)?, open(names[1], &run.pid)?];
    let mut pairs = Vec::new();
    for round in 0..=run.rounds {
        let first = runtime.block_on(run.scenario.run(a.target(), &run.load))?;
        let second = runtime.block_on(run.scenario.run(b.target(), &run.load))?;
        if round > 0 {
            pairs.push((first, second));
        }
    }
    Ok(pairs)
}

fn all(all: &All) -> anyhow::Result<()> {
    let runtime = runtime()?;
    let peers = if all.peer.is_empty() { peers::names()? } else { all.peer.clone() };
    let names = ours::names().into_iter().map(str::to_owned).chain(peers);
    let mut report = empty_report();
    for name in names {
        for (scenario, load) in ours::plan(&name, all.smoke) {
            // A server of its own for each scenario: none pays for what came before.
            let opened = match open(&name, &[]) {
                Ok(opened) => opened,
                Err(error) => {
                    writeln!(std::io::stderr(), "{name} is left out: {error:#}")?;
                    break;
                }
            };
            match runtime.block_on(scenario.run(opened.target(), &load)) {
                Ok(figures) => report.runs.push(figures),
                Err(error) => {
                    writeln!(std::io::stderr(), "{name} cannot {}: {error:#}", scenario.name())?;
                }
            }
        }
    }
    tell(&report, &all.output)
}

fn tell(report: &Report, output: &Output) -> anyhow::Result<()> {
    for file in &output.output {
        report.write(file).with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(std::io::stdout().write_all(report.table().as_bytes())?)
}

fn empty_report() -> Report {
    let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    Report {
        machine: Machine::this(),
        command: format!("loadtest {command}"),
        runs: Vec::new(),
        compared: Vec::new(),
    }
}

/// The load has one core, servers another, where there are two.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut cores = rustix::thread::CpuSet::new();
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        cores.set(1);
        rustix::thread::sched_setaffinity(None, &cores)?;
    }
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
    Running(Target),
}

impl Opened {
    fn target(&self) -> &Target {
        match self {
            Self::Started(started) => &started.target,
            Self::Running(target) => target,
        }
    }
}

fn open(name: &str, pids: &[u32]) -> anyhow::Result<Opened> {
    if name.starts_with("http://") {
        return Ok(Opened::Running(ours::running(name, pids)?));
    }
    if name.ends_with(".json") {
        return Ok(Opened::Running(ours::cluster(name)?));
    }
    if ours::names().contains(&name) {
        return Ok(Opened::Started(ours::start(name, 0)?));
    }
    Ok(Opened::Started(peers::start(name, 0)?))
}
