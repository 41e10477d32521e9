//! Registers metrics with the registry of the process.
//!
//! Each metric is a static of the crate that it is about, registered when it is first used. A name
//! that is malformed or registered twice is a mistake in a constant: it panics, so that any test
//! which meets the metric finds it.

use prometheus::{
    Error, Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    register_gauge, register_histogram, register_histogram_vec, register_int_counter,
    register_int_counter_vec, register_int_gauge, register_int_gauge_vec,
};

/// A whole number that rises and falls.
pub fn gauge(name: &str, help: &str) -> IntGauge {
    registered(name, register_int_gauge!(name, help))
}

/// Whole numbers that rise and fall, one for each combination of labels.
pub fn gauges(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    registered(name, register_int_gauge_vec!(name, help, labels))
}

/// A number with a fraction, such as a time in seconds, that rises and falls.
pub fn float_gauge(name: &str, help: &str) -> Gauge {
    registered(name, register_gauge!(name, help))
}

/// A number that only rises.
pub fn counter(name: &str, help: &str) -> IntCounter {
    registered(name, register_int_counter!(name, help))
}

/// Numbers that only rise, one for each combination of labels.
pub fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    registered(name, register_int_counter_vec!(name, help, labels))
}

/// How often a value was at most each of these bounds.
pub fn histogram(name: &str, help: &str, buckets: Vec<f64>) -> Histogram {
    registered(name, register_histogram!(name, help, buckets))
}

/// Histograms, one for each combination of labels.
pub fn histograms(name: &str, help: &str, labels: &[&str], buckets: Vec<f64>) -> HistogramVec {
    registered(name, register_histogram_vec!(name, help, labels, buckets))
}

fn registered<T>(name: &str, metric: Result<T, Error>) -> T {
    metric.unwrap_or_else(|error| panic!("the metric {name} cannot be registered: {error}"))
}

#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(expected = "the metric roundhouse_test_total cannot be registered")]
    fn a_name_that_is_registered_twice_is_found() {
        super::counter("roundhouse_test_total", "Nothing.");
        super::counter("roundhouse_test_total", "Nothing.");
    }
}
