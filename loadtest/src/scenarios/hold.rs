//! Sessions that only listen: what one costs while nothing happens in it.

use std::collections::BTreeMap;
use std::time::Instant;

use indicatif::ProgressBar;
use tokio::task::JoinSet;

use super::Load;
use crate::figures::{Figures, Stopwatch, Tally};
use crate::mcp::{self, Session};
use crate::target::Target;
use crate::wire::Wire;

/// Sessions that are being opened at the same time.
const OPENING_MAX: usize = 32;

/// Sessions that are opened before it begins.
const WARMING: usize = 10;

pub(crate) async fn run(
    target: &Target,
    load: &Load,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    bar.set_length(load.sessions as u64);
    // What a server needs once, for its first sessions, is no session's cost.
    let few = load.sessions.min(WARMING);
    drop(open(target, few, &ProgressBar::hidden(), &mut Tally::new()?).await?);
    let before = target.processes.cost()?;
    let mut tally = Tally::new()?;
    let held = open(target, load.sessions, bar, &mut tally).await?;
    let opened = target.processes.cost()?;
    // What it costs to keep them, keep-alives included.
    let idling = Instant::now();
    tokio::time::sleep(load.time()).await;
    let idled = target.processes.cost()?;
    let alive = held.len();
    let watch = Stopwatch::start(&target.processes)?;
    let mut figures = watch.stop("hold", &target.name, tally)?;
    let each = |bytes: u64| bytes as f64 / alive.max(1) as f64 / 1_024.0;
    let idle = idled.cpu.saturating_sub(opened.cpu).as_secs_f64() / idling.elapsed().as_secs_f64();
    figures.secs = idling.elapsed().as_secs_f64();
    figures.per_sec = 0.0;
    figures.cpu_micros = None;
    figures.more = BTreeMap::from([
        ("held".to_owned(), alive as f64),
        ("rss_kib_each".to_owned(), each(idled.rss_bytes.saturating_sub(before.rss_bytes))),
        ("idle_cpu_percent".to_owned(), idle * 100.0),
        (
            "open_cpu_micros_each".to_owned(),
            opened.cpu.saturating_sub(before.cpu).as_secs_f64() * 1e6 / alive.max(1) as f64,
        ),
    ]);
    Ok(figures)
}

/// A session with its open stream, which ends with this value.
struct Held {
    _session: Session,
    _wire: Wire,
}

/// Opens so many sessions, each with a GET stream; some may fail, which is counted.
async fn open(
    target: &Target,
    sessions: usize,
    bar: &ProgressBar,
    tally: &mut Tally,
) -> anyhow::Result<Vec<Held>> {
    let mut held = Vec::with_capacity(sessions);
    let mut opening = JoinSet::new();
    let mut next = 0;
    while next < sessions || !opening.is_empty() {
        while next < sessions && opening.len() < OPENING_MAX {
            let target = target.clone();
            opening.spawn(async move { (Instant::now(), listen(&target, next).await) });
            next += 1;
        }
        let Some(opened) = opening.join_next().await else { break };
        match opened? {
            (began, Ok(one)) => {
                tally.done(began);
                held.push(one);
            }
            (_, Err(error)) => tally.failed(&error),
        }
        bar.inc(1);
    }
    Ok(held)
}

async fn listen(target: &Target, number: usize) -> anyhow::Result<Held> {
    let endpoint = &target.endpoints[number % target.endpoints.len()];
    let source = mcp::source(number / target.endpoints.len());
    let mut wire = Wire::connect(endpoint.address, source).await?;
    let session = target.session(endpoint, &mut wire).await?;
    wire.send(session.get(None).as_bytes()).await?;
    let head = wire.head().await?;
    anyhow::ensure!(head.status == 200, "a GET was answered {}", head.status);
    Ok(Held { _session: session, _wire: wire })
}
