//! Calls of a tool that answers at once: the cost and the latency of a call.

use indicatif::ProgressBar;

use super::{Load, Pace, on_many};
use crate::figures::{Figures, Stopwatch, Tally};
use crate::mcp::{self, Session};
use crate::target::Target;
use crate::wire::Wire;

pub(crate) async fn run(
    target: &Target,
    load: &Load,
    bar: &ProgressBar,
) -> anyhow::Result<Figures> {
    bar.set_length(load.secs as u64);
    // Sessions are opened before the watch starts: only calls are measured.
    let mut callers = Vec::new();
    for number in 0..load.connections {
        callers.push(Caller::new(target, number).await?);
    }
    let watch = Stopwatch::start(target)?;
    let mut callers = callers.into_iter();
    let tally = on_many(load.connections, |task| {
        let caller = callers.next();
        let (pace, bar) = (Pace::new(load, task, load.connections), bar.clone());
        async move {
            match caller {
                Some(caller) => caller.call_until_over(pace, task == 0, &bar).await,
                None => Tally::new(),
            }
        }
    });
    let tally = tally.await?;
    let name = if load.rate.is_some() { "calls-at-a-rate" } else { "calls" };
    watch.stop(name, tally)
}

/// A session, with a connection to each endpoint of the target. Each call goes to the next
/// endpoint, as through a balancer without affinity.
pub(super) struct Caller {
    wires: Vec<Wire>,
    sessions: Vec<Session>,
    tool: mcp::Tool,
    turn: usize,
}

impl Caller {
    pub(super) async fn new(target: &Target, number: usize) -> anyhow::Result<Self> {
        let mut wires = Vec::new();
        for endpoint in &target.endpoints {
            wires.push(Wire::connect(endpoint.address, None).await?);
        }
        let home = number % wires.len();
        let session = target.session(&target.endpoints[home], &mut wires[home]).await?;
        let sessions = target.endpoints.iter().map(|endpoint| session.at(endpoint)).collect();
        Ok(Self { wires, sessions, tool: target.echo.clone(), turn: number })
    }

    pub(super) async fn call_until_over(
        mut self,
        mut pace: Pace,
        shows: bool,
        bar: &ProgressBar,
    ) -> anyhow::Result<Tally> {
        let mut tally = Tally::new()?;
        let began = std::time::Instant::now();
        while let Some(due) = pace.turn().await {
            self.turn += 1;
            let entry = self.turn % self.wires.len();
            let (_, request) = self.sessions[entry].call(&self.tool, false);
            match mcp::call(&mut self.wires[entry], &request).await {
                Ok(called) if called.is_result => tally.done(due),
                Ok(_) => tally.failed(&anyhow::anyhow!("a call was answered with an error")),
                Err(error) => {
                    tally.failed(&error);
                    let address = self.sessions[entry].endpoint().address;
                    self.wires[entry] = Wire::connect(address, None).await?;
                }
            }
            if shows {
                bar.set_position(began.elapsed().as_secs());
            }
        }
        if let (Some(session), Some(wire)) = (self.sessions.first(), self.wires.first_mut()) {
            let _ended = session.close(wire).await;
        }
        Ok(tally)
    }
}
