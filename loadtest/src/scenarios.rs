//! What can be asked of a server, each scenario in a file of its own.

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
    /// Streams that are all cut at once and come back.
    Resume,
    /// Streams and calls while nodes are killed and drained.
    Chaos,
    /// A quiet tenant beside a noisy one.
    Tenants,
    /// A server of ours that is started anew, until it is ready.
    Start,
}

/// How hard, and for how long.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// How long a measurement lasts, in seconds.
    #[arg(long, default_value_t = 5.0)]
    pub(crate) secs: f64,
    /// How many connections work at the same time.
    #[arg(long, short, default_value_t = 16)]
    pub(crate) connections: usize,
    /// Sessions that are held or cut at once (`hold`, `resume`).
    #[arg(long, default_value_t = 1_000)]
    pub(crate) sessions: usize,
    /// Sessions without a stream (`hold`).
    #[arg(long)]
    pub(crate) idle: bool,
    /// Calls each second in all, whatever the server does: an open loop. Without it, each
    /// connection calls again when it was answered.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// The wait between two progress events, in milliseconds (`progress`).
    #[arg(long, default_value_t = 0)]
    pub(crate) interval_ms: u64,
    /// Progress events of a call (`progress`).
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) events: u64,
    /// Nodes that are killed, and as many drained, one every few seconds (`chaos`).
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

    /// Runs it once.
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

/// Shown on a terminal; elsewhere it is silent.
fn bar(name: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{prefix:>30} {wide_bar} {pos}/{len}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(name.to_owned());
    bar
}

/// Runs `work` on so many tasks and adds up what they did.
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

/// When the things that one task does are due: at once after each other, or, in an open
/// loop, at fixed times whatever the server does, so that what waits is counted as waiting.
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

    /// Waits for the next turn and says when it was due; `None` when the time is over.
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
        // The timer rounds up to milliseconds. That is not the server's doing, so what it
        // adds is no latency; what a call before this one took too long is.
        tokio::time::sleep_until(due.into()).await;
        Some(Instant::now())
    }
}
