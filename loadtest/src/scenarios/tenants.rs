//! A quiet tenant beside a noisy one: the latency of the quiet one, alone and while the other
//! calls as fast as it can on many connections.

use std::collections::BTreeMap;

use anyhow::Context as _;
use indicatif::ProgressBar;

use super::calls::Caller;
use super::{Load, Pace, on_many};
use crate::figures::{Figures, Latency, Stopwatch, Tally};
use crate::target::Target;

/// Calls of the quiet tenant, each second.
const QUIET_RATE: f64 = 100.0;

pub(crate) async fn run(
    target: &Target,
    load: &Load,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    bar.set_length(load.secs as u64 * 2);
    let neighbour = target.neighbour.as_deref().context("the server has no second tenant")?;
    let alone = quiet(target, load, bar).await?;
    let mut callers = Vec::new();
    for number in 0..load.connections {
        callers.push(Caller::new(neighbour, number, false).await?);
    }
    let noisy_load = Load { rate: None, ..load.clone() };
    let mut callers = callers.into_iter();
    let noise = on_many(load.connections, |task| {
        let caller = callers.next();
        let pace = Pace::new(&noisy_load, task, noisy_load.connections);
        let bar = bar.clone();
        async move {
            match caller {
                Some(caller) => caller.call_until_over(pace, false, &bar).await,
                None => Tally::new(),
            }
        }
    });
    let (beside, noise) = tokio::join!(quiet(target, load, bar), noise);
    let (mut figures, noise) = (beside?, noise?);
    let p99 = |latency: &Option<Latency>| latency.as_ref().map_or(0.0, |l| l.p99 as f64);
    // The CPU includes the calls of both tenants, so it is not reported.
    figures.cpu_micros = None;
    figures.more = BTreeMap::from([
        ("p99_alone_micros".to_owned(), p99(&alone.latency)),
        ("p99_beside_micros".to_owned(), p99(&figures.latency)),
        ("noisy_calls_per_sec".to_owned(), noise.done as f64 / figures.secs),
    ]);
    Ok(figures)
}

async fn quiet(target: &Target, load: &Load, bar: &ProgressBar) -> anyhow::Result<Figures> {
    let load = Load { rate: Some(QUIET_RATE), connections: 1, ..load.clone() };
    let caller = Caller::new(target, 0, false).await?;
    let watch = Stopwatch::start(target)?;
    let tally = caller.call_until_over(Pace::new(&load, 0, 1), true, bar).await?;
    watch.stop("tenants", tally)
}
