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
    let has_others = target.endpoints.len() > 1;
    anyhow::ensure!(!load.forwarded || has_others, "--forwarded needs a server with several nodes");
    // Sessions are opened before the watch starts: only calls are measured.
    let mut callers = Vec::new();
    for number in 0..load.connections {
        callers.push(Caller::new(target, number, load.forwarded).await?);
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
    let name = match (load.rate.is_some(), load.forwarded) {
        (true, _) => "calls-at-a-rate",
        (false, true) => "forwarded-calls",
        (false, false) => "calls",
    };
    watch.stop(name, tally)
}

/// A session, with a connection to each endpoint of the target. Each call goes to the next
/// endpoint, as through a balancer without affinity, or always to the one after that of the owner.
pub(super) struct Caller {
    wires: Vec<Wire>,
    sessions: Vec<Session>,
    tool: mcp::Tool,
    turn: usize,
    /// How far the turn advances with each call.
    advance: usize,
}

impl Caller {
    pub(super) async fn new(
        target: &Target,
        number: usize,
        forwarded: bool,
    ) -> anyhow::Result<Self> {
        let mut wires = Vec::new();
        for endpoint in &target.endpoints {
            wires.push(Wire::connect(endpoint.address, None).await?);
        }
        let home = number % wires.len();
        let session = target.session(&target.endpoints[home], &mut wires[home]).await?;
        let sessions = target.endpoints.iter().map(|endpoint| session.at(endpoint)).collect();
        let (turn, advance) = if forwarded { (home + 1, 0) } else { (number, 1) };
        Ok(Self { wires, sessions, tool: target.echo.clone(), turn, advance })
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
            self.turn += self.advance;
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
