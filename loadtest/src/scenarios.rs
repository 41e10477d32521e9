//! The scenarios, each in a file of its own.

mod calls;
mod chaos;
mod churn;
mod hold;
pub(crate) mod parts;
mod progress;
mod resume;
mod start;
mod tenants;

use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinSet;

use crate::figures::{Figures, Tally};
use crate::target::Target;

/// A scenario, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// Calls of a tool that answers at once.
    Calls,
    /// Sessions that are opened, used once and ended.
    Churn,
    /// Sessions that only listen.
    Hold,
    /// Calls that report progress ten times.
    Progress,
    /// Streams that are all cut at once and resume.
    Resume,
    /// Calls and their streams while nodes are killed and drained.
    Chaos,
    /// A quiet tenant beside a noisy one.
    Tenants,
    /// The start of one of our servers, until it is ready.
    Start,
}

/// The load on the server, and the duration.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// The duration of a measurement, in seconds.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) secs: f64,
    /// The number of concurrent connections.
    #[arg(long, short, default_value_t = 16)]
    pub(crate) connections: usize,
    /// The number of sessions that are held, or whose streams are cut at once (`hold`, `resume`).
    #[arg(long, default_value_t = 1_000)]
    pub(crate) sessions: usize,
    /// Holds sessions without a stream (`hold`).
    #[arg(long)]
    pub(crate) idle: bool,
    /// The total of calls each second, at any speed of the server: an open loop. Without this
    /// option, each connection sends the next call when the last one is answered.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Sends each call to a node that does not own its session (`calls`).
    #[arg(long)]
    pub(crate) forwarded: bool,
    /// The pause between two progress events, in milliseconds (`progress`).
    #[arg(long, default_value_t = 0)]
    pub(crate) interval_ms: u64,
    /// The number of progress events of a call (`progress`).
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) events: u64,
    /// The number of nodes that are killed, one every few seconds. As many are drained (`chaos`).
    #[arg(long, default_value_t = 3)]
    pub(crate) kills: usize,
}

impl Load {
    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.secs)
    }
}

impl Scenario {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::Churn => "churn",
            Self::Hold => "hold",
            Self::Progress => "progress",
            Self::Resume => "resume",
            Self::Chaos => "chaos",
            Self::Tenants => "tenants",
            Self::Start => "start",
        }
    }

    /// Runs the scenario once.
    pub(crate) async fn run(self, target: &Target, load: &Load) -> anyhow::Result<Figures> {
        let bar = bar(&format!("{} {}", self.name(), target.name));
        let figures = match self {
            Self::Calls => calls::run(target, load, &bar).await,
            Self::Churn => churn::run(target, load, &bar).await,
            Self::Hold => hold::run(target, load, &bar).await,
            Self::Progress => progress::run(target, load, &bar).await,
            Self::Resume => resume::run(target, load, &bar).await,
            Self::Chaos => chaos::run(target, load, &bar).await,
            Self::Tenants => tenants::run(target, load, &bar).await,
            Self::Start => start::run(target, &bar),
        };
        bar.finish_and_clear();
        figures
    }
}

/// A progress bar, which is drawn only on a terminal.
fn bar(name: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{prefix:>30} {wide_bar} {pos}/{len}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(name.to_owned());
    bar
}

/// Runs `work` on this number of tasks, and adds up their tallies.
async fn on_many<F, W>(tasks: usize, mut work: W) -> anyhow::Result<Tally>
where
    F: Future<Output = anyhow::Result<Tally>> + Send + 'static,
    W: FnMut(usize) -> F,
{
    let mut running = JoinSet::new();
    for task in 0..tasks {
        running.spawn(work(task));
    }
    let mut total = Tally::new()?;
    while let Some(tally) = running.join_next().await {
        total.add(&tally??);
    }
    Ok(total)
}

/// The times at which the operations of one task are due: one directly after the other, or, in
/// an open loop, at fixed times. There, an operation that starts late counts its delay as latency.
struct Pace {
    next: Instant,
    until: Instant,
    every: Option<Duration>,
}

impl Pace {
    fn new(load: &Load, task: usize, tasks: usize) -> Self {
        let now = Instant::now();
        let every = load.rate.map(|rate| Duration::from_secs_f64(tasks as f64 / rate));
        let offset =
            every.map_or(Duration::ZERO, |every| every.mul_f64(task as f64 / tasks as f64));
        Self { next: now + offset, until: now + load.time(), every }
    }

    /// Waits until the next operation is due, and returns the time from which its latency counts.
    /// `None` when the time is over.
    async fn turn(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let due = self.every.map_or(now, |_| self.next);
        if due >= self.until {
            return None;
        }
        self.next += self.every.unwrap_or_default();
        if due <= now {
            return Some(due);
        }
        // The timer rounds up to milliseconds. The server does not cause this delay, so it does
        // not count as latency. The delay by a previous call does.
        tokio::time::sleep_until(due.into()).await;
        Some(Instant::now())
    }
}
