//! The clients of the quiet tenants, on the nodes' core.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;

use super::backends::Kind;
use super::machine::Machine;
use crate::core_speed::{SlowTimes, since_boot};
use crate::cores;
use crate::mcp::{self, Endpoint, Session};
use crate::wire::Wire;

/// The pause between two calls of a client.
const PAUSE: Duration = Duration::from_millis(5);

/// Clients of quiet tenants, one for each kind of backend.
pub(crate) struct Callers;

/// The calls of one client.
pub(crate) struct Calls(Vec<Call>);

struct Call {
    /// Since boot.
    began: Duration,
    took: Duration,
}

/// How long calls took, in order.
pub(crate) struct Times(Vec<Duration>);

impl Calls {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// How long the calls took, without the times in which a core was slow. Calls in such a time are left out, unless
    /// they took more than `long` besides.
    pub(crate) fn times_but(&self, slow: &SlowTimes, long: Duration) -> Times {
        let time = |call: &Call| {
            let slow = slow.within(call.began, call.began + call.took);
            let besides = call.took.saturating_sub(slow);
            (slow.is_zero() || besides > long).then_some(besides)
        };
        let mut times: Vec<_> = self.0.iter().filter_map(time).collect();
        times.sort();
        Times(times)
    }
}

impl Times {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The time that `percent` of the calls did not exceed; zero without calls.
    pub(crate) fn at(&self, percent: usize) -> Duration {
        let place = (self.0.len() * percent / 100).min(self.0.len().saturating_sub(1));
        self.0.get(place).copied().unwrap_or_default()
    }
}

impl Callers {
    /// Makes calls for this time, on a thread of its own. Fails if one call fails.
    pub(crate) fn call(machine: &Machine, time: Duration) -> anyhow::Result<Vec<Calls>> {
        let endpoints = Kind::ALL.map(|kind| machine.endpoint("quiet", kind));
        let calling = std::thread::spawn(move || {
            cores::enter_server_core();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let callers = std::iter::zip(Kind::ALL, endpoints)
                .map(|(kind, endpoint)| async move { call(kind, endpoint?, time).await });
            runtime.block_on(try_join_all(callers))
        });
        calling.join().map_err(|_| anyhow::anyhow!("the quiet clients panicked"))?
    }
}

async fn call(kind: Kind, endpoint: Endpoint, time: Duration) -> anyhow::Result<Calls> {
    let mut wire = Wire::connect(endpoint.address, None).await?;
    let session = Session::open(&endpoint, &mut wire).await;
    let mut session = session.with_context(|| format!("a session with {endpoint}"))?;
    let tool = kind.tool("echo", r#"{"message":"The quick brown fox"}"#.to_owned());
    let mut calls = Vec::new();
    let until = Instant::now() + time;
    while calls.is_empty() || Instant::now() < until {
        let (_, request) = session.call(&tool, false);
        let began = since_boot();
        let called = mcp::call(&mut wire, &request).await;
        ensure!(called.with_context(|| endpoint.to_string())?.is_result, "{endpoint}: an error");
        calls.push(Call { began, took: since_boot().saturating_sub(began) });
        tokio::time::sleep(PAUSE).await;
    }
    session.close(&mut wire).await?;
    Ok(Calls(calls))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_a_slow_time_are_left_out_unless_they_are_long_without_it() {
        const MS: fn(u64) -> Duration = Duration::from_millis;
        let mut slow = SlowTimes::default();
        // From 95 to 105.
        slow.add_core(&[MS(100)], MS(5));
        let call = |(began, took)| Call { began: MS(began), took: MS(took) };
        let calls = Calls([(90, 2), (92, 4), (99, 15), (99, 17), (105, 3)].map(call).into());
        assert_eq!(calls.times_but(&slow, MS(10)).0, [2, 3, 11].map(MS));
    }
}
