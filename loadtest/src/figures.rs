//! The results of one run of a scenario.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::process::Processes;
use crate::target::Target;

/// The longest latency that is recorded, in microseconds. Longer ones are recorded as this.
const LATENCY_MAX: u64 = 600_000_000;
/// The maximum number of kinds of failures. Further kinds are counted together as `others`.
const FAILURES_MAX: usize = 16;

/// Counts and latencies of a scenario that runs.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    failures: BTreeMap<String, u64>,
    latency: Histogram<u64>,
}

impl Tally {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX, 3)?;
        Ok(Self { done: 0, failures: BTreeMap::new(), latency })
    }

    /// Counts a success of an operation that was due at `due`. Its latency includes the wait
    /// before it started.
    pub(crate) fn done(&mut self, due: Instant) {
        self.took(due.elapsed());
    }

    /// Counts a success with this latency.
    pub(crate) fn took(&mut self, time: Duration) {
        self.done += 1;
        let micros = u64::try_from(time.as_micros()).unwrap_or(LATENCY_MAX);
        self.latency.saturating_record(micros.max(1));
    }

    pub(crate) fn failed(&mut self, error: &anyhow::Error) {
        let mut kind = format!("{error:#}");
        if self.failures.len() >= FAILURES_MAX && !self.failures.contains_key(&kind) {
            kind = "others".to_owned();
        }
        *self.failures.entry(kind).or_default() += 1;
    }

    /// The number of failures of each kind.
    pub(crate) fn failures(&self) -> &BTreeMap<String, u64> {
        &self.failures
    }

    /// Adds the counts of another process, without its latencies.
    pub(crate) fn elsewhere(&mut self, done: u64, failures: BTreeMap<String, u64>) {
        self.done += done;
        for (kind, count) in failures {
            *self.failures.entry(kind).or_default() += count;
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.elsewhere(other.done, other.failures.clone());
        // Both have the same bounds.
        let _same = self.latency.add(&other.latency);
    }
}

/// The distribution of latencies, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    /// Pairs of quantile and value, for a plot.
    pub(crate) curve: Vec<(f64, u64)>,
}

/// The results of one run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) scenario: String,
    pub(crate) target: String,
    /// The duration of the run, in seconds.
    pub(crate) secs: f64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) failures: BTreeMap<String, u64>,
    pub(crate) per_sec: f64,
    /// Server CPU for each operation, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_micros: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<Latency>,
    /// Figures of this scenario only. Each name ends with its unit.
    pub(crate) more: BTreeMap<String, f64>,
}

/// Measures time and CPU from [`Stopwatch::start`] to [`Stopwatch::stop`].
pub(crate) struct Stopwatch<'a> {
    target: &'a Target,
    began: Instant,
    server: Duration,
    store: Duration,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn start(target: &'a Target) -> anyhow::Result<Self> {
        let (server, store) = (target.processes.cost()?.cpu, target.stores.cost()?.cpu);
        Ok(Self { target, began: Instant::now(), server, store })
    }

    pub(crate) fn stop(self, scenario: &str, tally: Tally) -> anyhow::Result<Figures> {
        let secs = self.began.elapsed().as_secs_f64();
        let each = |processes: &Processes, before| -> anyhow::Result<Option<f64>> {
            let known = !processes.is_empty() && tally.done > 0;
            let spent = processes.cost()?.cpu.saturating_sub(before).as_secs_f64();
            Ok(known.then_some(spent * 1e6 / tally.done as f64))
        };
        let cpu_micros = each(&self.target.processes, self.server)?;
        let redis = each(&self.target.stores, self.store)?;
        Ok(Figures {
            scenario: scenario.to_owned(),
            target: self.target.name.clone(),
            secs,
            done: tally.done,
            failed: tally.failures.values().sum(),
            per_sec: tally.done as f64 / secs,
            cpu_micros,
            latency: latency(&tally.latency),
            more: redis.map(|micros| ("redis_cpu_micros".to_owned(), micros)).into_iter().collect(),
            failures: tally.failures,
        })
    }
}

fn latency(histogram: &Histogram<u64>) -> Option<Latency> {
    if histogram.is_empty() {
        return None;
    }
    let at = |quantile| histogram.value_at_quantile(quantile);
    // Denser at high quantiles, which are the ones that matter in such a plot.
    let quantiles = (0..=40).map(|step| 1.0 - 10_f64.powf(-f64::from(step) / 10.0));
    Some(Latency {
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max: histogram.max(),
        curve: quantiles.map(|quantile| (quantile, at(quantile))).collect(),
    })
}
