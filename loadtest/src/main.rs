//! What an echo costs here beside what it costs in a bare HTTP handler.
//!
//! `cargo run --release -p loadtest` starts two servers, one on each way of answering the
//! same JSON, and calls them in turns: bare actix-web, which parses the body and echoes
//! it, and a node with an echo on the `Handler` trait. It prints the server's CPU time per
//! call, and the ratio of each pair of rounds: the ratios travel between machines, the
//! times do not.

mod client;
mod servers;

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};

use crate::client::Target;

/// Measures a node beside a bare HTTP handler.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Serve>,
    /// How often each server is called in its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long one turn lasts, in seconds.
    #[arg(long, default_value_t = 3)]
    secs: u64,
    /// How many connections call at the same time.
    #[arg(long, default_value_t = 16)]
    connections: usize,
}

/// The servers, each a process of its own so that its CPU time is its own.
#[derive(Subcommand, Clone, Copy)]
enum Serve {
    /// Bare actix-web.
    Bare,
    /// A node with an echo on the `Handler` trait.
    Node,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Serve::Bare) => servers::bare(),
        Some(Serve::Node) => servers::node(),
        None => compare(&arguments),
    }
}

fn compare(arguments: &Arguments) -> anyhow::Result<()> {
    let bare = Server::start("bare", 0)?;
    let node = Server::start("node", 0)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut out = std::io::stdout().lock();
    let mut ratios = Vec::new();
    writeln!(
        out,
        "{:>6} {:>22} {:>22} {:>7}",
        "round", "bare: calls/s, µs CPU", "node: calls/s, µs CPU", "ratio"
    )?;
    for round in 0..=arguments.rounds {
        let mut costs = [0.0; 2];
        let mut rates = [0.0; 2];
        for (index, server) in [&bare, &node].into_iter().enumerate() {
            let target = Target { address: server.address.clone(), is_node: index == 1 };
            let before = server.cpu()?;
            let calls = runtime.block_on(client::call(
                &target,
                arguments.connections,
                Duration::from_secs(arguments.secs),
            ))?;
            let spent = server.cpu()? - before;
            costs[index] = spent.as_secs_f64() * 1e6 / calls as f64;
            rates[index] = calls as f64 / arguments.secs as f64;
        }
        let ratio = costs[1] / costs[0];
        let name = if round == 0 { "warm".to_owned() } else { round.to_string() };
        writeln!(
            out,
            "{name:>6} {:>13.0} {:>8.2} {:>13.0} {:>8.2} {ratio:>7.2}",
            rates[0], costs[0], rates[1], costs[1]
        )?;
        if round > 0 {
            ratios.push(ratio);
        }
    }
    ratios.sort_by(f64::total_cmp);
    if let (Some(least), Some(most)) = (ratios.first(), ratios.last()) {
        let median = ratios[ratios.len() / 2];
        writeln!(
            out,
            "server CPU per call, node to bare: {median:.2} (median; {least:.2} to {most:.2})"
        )?;
    }
    Ok(())
}

/// A server in a process of its own; it ends with this value.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    /// Starts it, on one core where the machine lets us choose.
    fn start(which: &str, core: usize) -> anyhow::Result<Self> {
        let program = std::env::current_exe()?;
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]).arg(program).arg(which);
        let mut process = command
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a server; `taskset` of util-linux is needed")?;
        let stdout = process.stdout.take().context("the server's output")?;
        let mut address = String::new();
        BufReader::new(stdout).read_line(&mut address)?;
        if address.trim().is_empty() {
            bail!("the server `{which}` did not start");
        }
        Ok(Self { process, address: address.trim().to_owned() })
    }

    /// The CPU time it has spent.
    fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // The name in parentheses may hold spaces; utime and stime are the 12th and 13th after it.
        let fields = stat.rsplit_once(')').context("the process's stat")?.1;
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        // Linux counts in hundredths of a second for every program.
        Ok(Duration::from_millis(ticks * 10))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _status = self.process.wait();
    }
}
