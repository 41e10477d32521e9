//! Sessions with an open stream on which nothing happens, or without one: the cost of an idle
//! session.

use std::collections::BTreeMap;
use std::time::Instant;

use indicatif::ProgressBar;
use tokio::task::JoinSet;

use super::Load;
use super::parts::Parts;
use crate::figures::{Figures, Stopwatch, Tally};
use crate::mcp::{self, Session};
use crate::target::Target;
use crate::wire::Wire;

/// The maximum number of sessions that are opened concurrently.
const OPENING_MAX: usize = 32;
/// The number of sessions that are opened before the measurement starts.
const WARMING: usize = 10;

pub(crate) async fn run(
    target: &Target,
    load: &Load,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    bar.set_length(load.sessions as u64);
    // The first sessions cause one-time costs, which are not part of the cost of a session.
    let few = Held { sessions: load.sessions.min(WARMING), first: 0, idle: load.idle };
    drop(few.open(target, &ProgressBar::hidden(), &mut Tally::new()?).await?);
    let before = target.processes.cost()?;
    let mut tally = Tally::new()?;
    let (mine, mut parts) = Parts::start(target, load)?;
    let held = Held { sessions: mine, first: 0, idle: load.idle };
    let held = held.open(target, bar, &mut tally).await?;
    let elsewhere = parts.opened(&mut tally).await?;
    let opened = target.processes.cost()?;
    // The cost of keeping the sessions, including keep-alives.
    let idling = Instant::now();
    tokio::time::sleep(load.time()).await;
    let secs = idling.elapsed().as_secs_f64();
    let idled = target.processes.cost()?;
    let alive = held.len() + elsewhere;
    let watch = Stopwatch::start(target)?;
    let name = if load.idle { "hold-idle" } else { "hold" };
    let mut figures = watch.stop(name, tally)?;
    (figures.secs, figures.per_sec, figures.cpu_micros) = (secs, 0.0, None);
    let each = |all: f64| all / alive.max(1) as f64;
    let rss = idled.rss_bytes.saturating_sub(before.rss_bytes) as f64;
    let opening = opened.cpu.saturating_sub(before.cpu).as_secs_f64();
    let idle = idled.cpu.saturating_sub(opened.cpu).as_secs_f64() / secs;
    figures.more = BTreeMap::from([
        ("held".to_owned(), alive as f64),
        ("rss_kib_each".to_owned(), each(rss) / 1_024.0),
        ("idle_cpu_percent".to_owned(), idle * 100.0),
        ("open_cpu_micros_each".to_owned(), each(opening) * 1e6),
    ]);
    Ok(figures)
}

/// The sessions that this process holds.
pub(super) struct Held {
    pub(super) sessions: usize,
    /// The number of the first session, as other processes hold other sessions.
    pub(super) first: usize,
    /// Whether the sessions have no stream.
    pub(super) idle: bool,
}

impl Held {
    /// Opens the sessions and counts failures. Their streams end when the returned connections
    /// are dropped.
    pub(super) async fn open(
        &self,
        target: &Target,
        bar: &ProgressBar,
        tally: &mut Tally,
    ) -> anyhow::Result<Vec<Option<Wire>>> {
        let mut held = Vec::with_capacity(self.sessions);
        let mut opening = JoinSet::new();
        let mut numbers = self.first..self.first + self.sessions;
        loop {
            while opening.len() < OPENING_MAX
                && let Some(number) = numbers.next()
            {
                let (target, idle) = (target.clone(), self.idle);
                opening.spawn(async move { (Instant::now(), open(&target, number, idle).await) });
            }
            let Some(opened) = opening.join_next().await else { return Ok(held) };
            match opened? {
                (began, Ok(one)) => {
                    tally.done(began);
                    held.push(one);
                }
                (_, Err(error)) => tally.failed(&error),
            }
            bar.inc(1);
        }
    }
}

/// Opens one session. Returns its connection if that carries a stream.
async fn open(target: &Target, number: usize, idle: bool) -> anyhow::Result<Option<Wire>> {
    let endpoint = &target.endpoints[number % target.endpoints.len()];
    let source = mcp::source(number / target.endpoints.len());
    let mut wire = Wire::connect(endpoint.address, source).await?;
    let session: Session = target.session(endpoint, &mut wire).await?;
    if idle {
        return Ok(None);
    }
    wire.send(session.get(None).as_bytes()).await?;
    let head = wire.head().await?;
    anyhow::ensure!(head.status == 200, "a GET was answered {}", head.status);
    Ok(Some(wire))
}
