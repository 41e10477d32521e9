//! Histograms of durations that every request is in. Each thread counts in cells of its own, so that no
//! two threads change the same memory for each request; a reader adds the cells up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// The upper bounds of the buckets, in seconds: those of OpenTelemetry's conventions for MCP.
pub(crate) const BOUNDS: [f64; 14] =
    [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// A bucket for each bound, and one for what is longer.
const BUCKETS: usize = BOUNDS.len() + 1;

/// One label of a histogram, and all of its values. An empty value stands for no attribute; the registry
/// has `none` for it.
#[derive(Clone, Copy, Debug)]
pub struct DurationLabel {
    /// The name in the registry.
    pub name: &'static str,
    /// The name of the attribute in OpenTelemetry's conventions.
    pub attribute: &'static str,
    /// The values. Each is observed by its number.
    pub values: &'static [&'static str],
}

/// What a histogram of durations is called.
#[derive(Clone, Copy, Debug)]
pub struct DurationNames {
    /// The name in the registry.
    pub name: &'static str,
    /// The name in OpenTelemetry's conventions.
    pub convention: &'static str,
    /// What is measured.
    pub help: &'static str,
    /// The labels.
    pub labels: [DurationLabel; 2],
}

/// A histogram of durations, with one series for each pair of labels that was observed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Durations(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    names: DurationNames,
    desc: Desc,
    /// The cells of each thread; the first ones have what threads counted that have ended.
    all: Mutex<Vec<Arc<Cells>>>,
}

/// Counts the durations that one thread observes.
#[derive(Clone, Debug)]
pub struct DurationObserver(Arc<Cells>);

/// The series of each value of the first label, made when it is first observed.
#[derive(Debug)]
struct Cells(Box<[OnceLock<Box<[Series]>>]>, usize);

#[derive(Debug, Default)]
struct Series {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

/// What was observed with one pair of labels.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// The numbers of the values of the labels.
    pub(crate) values: [usize; 2],
    pub(crate) buckets: [u64; BUCKETS],
    pub(crate) seconds: f64,
}

/// The histograms that are sent to a collector by the names of the conventions.
static REGISTERED: Mutex<Vec<Durations>> = Mutex::new(Vec::new());

impl Durations {
    /// A histogram that no registry has.
    pub fn of(names: DurationNames) -> Self {
        let labels = names.labels.iter().map(|label| label.name.to_owned()).collect();
        let desc = Desc::new(names.name.into(), names.help.into(), labels, Default::default());
        let desc =
            desc.unwrap_or_else(|error| panic!("the metric {} is wrong: {error}", names.name));
        let ended = Arc::new(Cells::new(&names));
        Self(Arc::new(Shared { names, desc, all: Mutex::new(vec![ended]) }))
    }

    /// Registers a histogram. A name that is registered twice is an error in a constant, and panics.
    pub fn register(names: DurationNames) -> Self {
        let durations = Self::of(names);
        if let Err(error) = prometheus::register(Box::new(durations.clone())) {
            panic!("the metric {} cannot be registered: {error}", names.name);
        }
        REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).push(durations.clone());
        durations
    }

    /// The cells for one more thread.
    pub fn observer(&self) -> DurationObserver {
        let cells = Arc::new(Cells::new(&self.0.names));
        self.0.all.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&cells));
        DurationObserver(cells)
    }

    pub(crate) fn names(&self) -> &DurationNames {
        &self.0.names
    }

    /// Everything that was observed.
    pub(crate) fn observed(&self) -> Vec<Observed> {
        let mut all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, running) = all.split_at(1);
        // No thread changes the cells of one that has ended.
        let is_over = |cells: &Arc<Cells>| Arc::strong_count(cells) == 1;
        running.iter().filter(|cells| is_over(cells)).for_each(|cells| ended[0].add(cells));
        let mut number = 0;
        all.retain(|cells| {
            number += 1;
            number == 1 || !is_over(cells)
        });
        let sum = Cells::new(&self.0.names);
        all.iter().for_each(|cells| sum.add(cells));
        sum.series().map(|(values, series)| series.read(values)).collect()
    }
}

/// Every histogram of durations of this process.
pub(crate) fn registered() -> Vec<Durations> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl DurationObserver {
    /// Counts a duration with these values of the labels, by their numbers. A number that no value has
    /// is not counted.
    pub fn observe(&self, values: [usize; 2], duration: Duration) {
        let Some(series) = self.0.at(values) else { return };
        let seconds = duration.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        series.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        // After 584 years it begins at 0 again.
        series.nanos.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Cells {
    fn new(names: &DurationNames) -> Self {
        let [rows, columns] = names.labels.map(|label| label.values.len());
        Self((0..rows).map(|_| OnceLock::new()).collect(), columns)
    }

    fn at(&self, [row, column]: [usize; 2]) -> Option<&Series> {
        let row = self.0.get(row)?;
        row.get_or_init(|| (0..self.1).map(|_| Series::default()).collect()).get(column)
    }

    fn series(&self) -> impl Iterator<Item = ([usize; 2], &Series)> {
        let rows = self.0.iter().enumerate();
        let rows = rows.filter_map(|(number, row)| Some((number, row.get()?)));
        rows.flat_map(|(row, series)| {
            let series = series.iter().enumerate();
            let used = series.filter(|(_, series)| series.is_used());
            used.map(move |(column, series)| ([row, column], series))
        })
    }

    fn add(&self, other: &Self) {
        for (values, series) in other.series() {
            let Some(own) = self.at(values) else { continue };
            for (own, added) in own.buckets.iter().zip(&series.buckets) {
                own.fetch_add(added.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            own.nanos.fetch_add(series.nanos.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

impl Series {
    fn is_used(&self) -> bool {
        self.buckets.iter().any(|bucket| bucket.load(Ordering::Relaxed) > 0)
    }

    fn read(&self, values: [usize; 2]) -> Observed {
        let buckets = std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed));
        let nanos = self.nanos.load(Ordering::Relaxed);
        Observed { values, buckets, seconds: Duration::from_nanos(nanos).as_secs_f64() }
    }
}

impl Collector for Durations {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.0.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let names = self.names();
        let metrics = self.observed().into_iter().map(|observed| metric(names, &observed));
        let mut family = MetricFamily::default();
        family.set_name(names.name.to_owned());
        family.set_help(names.help.to_owned());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(metrics.collect());
        vec![family]
    }
}

fn metric(names: &DurationNames, observed: &Observed) -> Metric {
    let labels = names.labels.iter().zip(observed.values).map(|(label, value)| {
        // Every series of the registry has all labels.
        let text = Some(label.values[value]).filter(|text| !text.is_empty()).unwrap_or("none");
        let mut pair = LabelPair::default();
        pair.set_name(label.name.to_owned());
        pair.set_value(text.to_owned());
        pair
    });
    let mut below = 0;
    let buckets = BOUNDS.iter().zip(observed.buckets).map(|(bound, count)| {
        below += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(*bound);
        bucket.set_cumulative_count(below);
        bucket
    });
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(observed.buckets.iter().sum());
    histogram.set_sample_sum(observed.seconds);
    let mut metric = Metric::default();
    metric.set_label(labels.collect());
    metric.set_histogram(histogram);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;

    fn durations(name: &'static str) -> Durations {
        let label = |name, attribute, values| DurationLabel { name, attribute, values };
        Durations::register(DurationNames {
            name,
            convention: "a.duration",
            help: "Nothing.",
            labels: [
                label("kind", "a.kind", &["one", "two"]),
                label("error", "error.type", &["", "x"]),
            ],
        })
    }

    #[test]
    fn what_threads_observe_is_added_up_also_after_they_have_ended() {
        let durations = durations("roundhouse_test_seconds");
        for _ in 0..3 {
            let observer = durations.observer();
            observer.observe([1, 0], Duration::from_millis(10));
            observer.observe([1, 0], Duration::from_millis(11));
            observer.observe([0, 1], Duration::from_secs(1_000));
            observer.observe([2, 0], Duration::ZERO);
            observer.observe([0, 2], Duration::ZERO);
            assert_eq!(durations.observed().len(), 2);
        }
        let live = durations.observer();
        live.observe([1, 0], Duration::ZERO);
        let text = String::from_utf8(crate::metrics_text()).unwrap();
        for line in [
            "roundhouse_test_seconds_bucket{kind=\"two\",error=\"none\",le=\"0.01\"} 4",
            "roundhouse_test_seconds_bucket{kind=\"two\",error=\"none\",le=\"0.02\"} 7",
            "roundhouse_test_seconds_count{kind=\"two\",error=\"none\"} 7",
            "roundhouse_test_seconds_bucket{kind=\"one\",error=\"x\",le=\"300\"} 0",
            "roundhouse_test_seconds_bucket{kind=\"one\",error=\"x\",le=\"+Inf\"} 3",
            "roundhouse_test_seconds_sum{kind=\"one\",error=\"x\"} 3000",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert_eq!(durations.0.all.lock().unwrap().len(), 2);
    }
}
