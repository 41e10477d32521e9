//! Sessions that are opened, list the tools once, and end: the cost of a session.

use std::time::Instant;

use indicatif::ProgressBar;

use super::{Load, Pace, on_many};
use crate::figures::{Figures, Stopwatch, Tally};
use crate::mcp::{self, Endpoint};
use crate::target::Target;
use crate::wire::Wire;

pub(crate) async fn run(
    target: &Target,
    load: &Load,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    bar.set_length(load.secs as u64);
    let watch = Stopwatch::start(target)?;
    let tally = on_many(load.connections, |task| {
        let endpoint = target.endpoints[task % target.endpoints.len()].clone();
        let pace = Pace::new(load, task, load.connections);
        churn(endpoint, pace, bar.clone(), task == 0)
    });
    let tally = tally.await?;
    watch.stop("churn", tally)
}

async fn churn(
    endpoint: Endpoint,
    mut pace: Pace,
    bar: ProgressBar,
    shows: bool,
) -> anyhow::Result<Tally> {
    let mut tally = Tally::new()?;
    let began = Instant::now();
    let mut wire = Wire::connect(endpoint.address, None).await?;
    while let Some(due) = pace.turn().await {
        match one_life(&endpoint, &mut wire).await {
            Ok(()) => tally.done(due),
            Err(error) => {
                tally.failed(&error);
                wire = Wire::connect(endpoint.address, None).await?;
            }
        }
        if shows {
            bar.set_position(began.elapsed().as_secs());
        }
    }
    Ok(tally)
}

async fn one_life(endpoint: &Endpoint, wire: &mut Wire) -> anyhow::Result<()> {
    let session = mcp::Session::open(endpoint, wire).await?;
    let list = session.post(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    let called = mcp::call(wire, &list).await?;
    anyhow::ensure!(called.is_result, "`tools/list` was answered with an error");
    session.close(wire).await
}
