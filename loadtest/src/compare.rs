//! Runs servers in turns, so that other work on the machine affects all of them alike.

use std::fmt;

use serde::Serialize;

use crate::figures::{Figures, Latency};
use crate::report::number;
use crate::scenarios::{Load, Scenario};
use crate::target::Target;

/// A scenario that several servers run in turns.
pub(crate) struct Turns<'a> {
    pub(crate) scenario: Scenario,
    pub(crate) load: &'a Load,
    /// The number of turns of each server. An additional first turn warms up; its result is
    /// dropped.
    pub(crate) rounds: usize,
}

impl Turns<'_> {
    /// Returns the runs of each server. A server that fails gets no further turn.
    pub(crate) async fn take(&self, targets: &[&Target]) -> Vec<anyhow::Result<Vec<Figures>>> {
        let mut runs: Vec<_> = targets.iter().map(|_| Ok(Vec::new())).collect();
        for round in 0..=self.rounds {
            for (target, taken) in std::iter::zip(targets, &mut runs) {
                let Ok(figures) = taken else { continue };
                match self.scenario.run(target, self.load).await {
                    Ok(run) if round > 0 => figures.push(run),
                    Ok(_) => {}
                    Err(error) => *taken = Err(error),
                }
            }
        }
        runs
    }
}

/// The comparison of a server with its base.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compared {
    pub(crate) scenario: String,
    pub(crate) server: String,
    pub(crate) base: String,
    /// Server CPU for each operation, divided by that of the base.
    pub(crate) cpu: Option<Spread>,
    /// Operations each second, divided by those of the base.
    pub(crate) rate: Option<Spread>,
    /// Latency at p50 and at p99 less that of the base, in microseconds.
    pub(crate) added_p50: Option<Spread>,
    pub(crate) added_p99: Option<Spread>,
}

/// The ratio over several rounds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) least: f64,
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl Compared {
    /// Compares runs pair by pair: both runs of a pair belong to the same round.
    pub(crate) fn of(runs: &[Figures], bases: &[Figures]) -> Option<Self> {
        let (first, base) = (runs.first()?, bases.first()?);
        let added = |at: fn(&Latency) -> u64| {
            let pairs = std::iter::zip(runs, bases);
            let latency = |figures: &Figures| figures.latency.as_ref().map(|all| at(all) as f64);
            Spread::of(
                pairs.filter_map(|(run, base)| Some(latency(run)? - latency(base)?)).collect(),
            )
        };
        let ratio = |value: fn(&Figures) -> Option<f64>| {
            let pairs = std::iter::zip(runs, bases);
            Spread::of(pairs.filter_map(|(run, base)| Some(value(run)? / value(base)?)).collect())
        };
        Some(Self {
            scenario: first.scenario.clone(),
            server: first.target.clone(),
            base: base.target.clone(),
            cpu: ratio(|figures| figures.cpu_micros.filter(|cpu| *cpu > 0.0)),
            rate: ratio(|figures| Some(figures.per_sec).filter(|rate| *rate > 0.0)),
            added_p50: added(|latency| latency.p50),
            added_p99: added(|latency| latency.p99),
        })
    }
}

impl Spread {
    fn of(mut ratios: Vec<f64>) -> Option<Self> {
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (*ratios.first()?, *ratios.last()?);
        Some(Self { least, median: ratios[ratios.len() / 2], most })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, median, most } = self;
        write!(f, "{} ({} to {})", number(*median), number(*least), number(*most))
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} to {}:", self.scenario, self.server, self.base)?;
        for (what, spread) in [("server CPU", &self.cpu), ("done per s", &self.rate)] {
            if let Some(spread) = spread {
                write!(f, " {what} × {spread};")?;
            }
        }
        for (what, spread) in [("p50", &self.added_p50), ("p99", &self.added_p99)] {
            if let Some(spread) = spread {
                write!(f, " {what} + {spread} µs;")?;
            }
        }
        Ok(())
    }
}

/// Returns the run with the median CPU, or with the median rate where CPU is not measured.
pub(crate) fn median(mut runs: Vec<Figures>) -> Option<Figures> {
    runs.sort_by(|a, b| {
        let by = |figures: &Figures| figures.cpu_micros.unwrap_or(figures.per_sec);
        by(a).total_cmp(&by(b))
    });
    let middle = runs.len() / 2;
    runs.into_iter().nth(middle)
}

/// The name of the server of these runs.
pub(crate) fn name_of(runs: &[Figures]) -> Option<&str> {
    runs.first().map(|run| run.target.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratios_of_rounds_are_told_as_median_least_and_most() {
        let spread = Spread::of(vec![3.0, 1.0, 2.5]).unwrap();
        assert_eq!(spread.to_string(), "2.50 (1 to 3)");
        assert!(Spread::of(Vec::new()).is_none());
    }
}
