//! Calls that report progress: the cost of an event on a stream.

use std::time::Instant;

use indicatif::ProgressBar;

use super::{Load, Pace, on_many};
use crate::figures::{Figures, Stopwatch, Tally};
use crate::mcp::{self, Session, Tool};
use crate::target::Target;
use crate::wire::Wire;

pub(crate) async fn run(
    target: &Target,
    load: &Load,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    bar.set_length(load.secs as u64);
    let tool = target.count(load.events, load.interval_ms)?;
    let mut callers = Vec::new();
    for number in 0..load.connections {
        let endpoint = &target.endpoints[number % target.endpoints.len()];
        let mut wire = Wire::connect(endpoint.address, None).await?;
        let session = target.session(endpoint, &mut wire).await?;
        callers.push((wire, session));
    }
    let watch = Stopwatch::start(target)?;
    let mut callers = callers.into_iter();
    let tally = on_many(load.connections, |task| {
        let caller = callers.next();
        let pace = Pace::new(load, task, load.connections);
        let (tool, events, bar) = (tool.clone(), load.events, bar.clone());
        async move {
            match caller {
                Some((wire, session)) => count(wire, session, tool, events, pace, bar).await,
                None => Tally::new(),
            }
        }
    });
    let tally = tally.await?;
    let name = if load.interval_ms > 0 { "progress-apart" } else { "progress" };
    let mut figures = watch.stop(name, tally)?;
    let each = load.events as f64;
    figures.more.insert("events_per_sec".to_owned(), figures.per_sec * each);
    if let Some(cpu) = figures.cpu_micros {
        figures.more.insert("cpu_micros_event".to_owned(), cpu / each);
    }
    if let Some(cpu) = figures.more.remove("redis_cpu_micros") {
        figures.more.insert("redis_cpu_micros_event".to_owned(), cpu / each);
    }
    Ok(figures)
}

async fn count(
    mut wire: Wire,
    mut session: Session,
    tool: Tool,
    events: u64,
    mut pace: Pace,
    bar: ProgressBar,
) -> anyhow::Result<Tally> {
    let mut tally = Tally::new()?;
    let began = Instant::now();
    while let Some(due) = pace.turn().await {
        let (_, request) = session.call(&tool, true);
        match mcp::call(&mut wire, &request).await {
            Ok(called) if called.is_result && called.events == events => tally.done(due),
            Ok(called) => {
                tally.failed(&anyhow::anyhow!("received {} of {events} events", called.events));
            }
            Err(error) => {
                tally.failed(&error);
                wire = Wire::connect(session.endpoint().address, None).await?;
            }
        }
        bar.set_position(began.elapsed().as_secs());
    }
    let _ended = session.close(&mut wire).await;
    Ok(tally)
}
