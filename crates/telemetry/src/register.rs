//! Registers metrics with the registry of the process.
//!
//! Each metric is a static of its crate, and is registered when it is first used. A name that is
//! malformed or registered twice is an error in a constant. The registration panics, so that any
//! test that uses the metric fails.

use prometheus::{
    Error, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, register_gauge, register_gauge_vec, register_histogram, register_histogram_vec,
    register_int_counter, register_int_counter_vec, register_int_gauge, register_int_gauge_vec,
};

/// Registers a gauge with a whole number.
pub fn gauge(name: &str, help: &str) -> IntGauge {
    registered(name, register_int_gauge!(name, help))
}

/// Registers gauges with whole numbers, one for each combination of labels.
pub fn gauges(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    registered(name, register_int_gauge_vec!(name, help, labels))
}

/// Registers a gauge with a fraction, such as a time in seconds.
pub fn float_gauge(name: &str, help: &str) -> Gauge {
    registered(name, register_gauge!(name, help))
}

/// Registers gauges with fractions, one for each combination of labels.
pub fn float_gauges(name: &str, help: &str, labels: &[&str]) -> GaugeVec {
    registered(name, register_gauge_vec!(name, help, labels))
}

/// Registers a counter.
pub fn counter(name: &str, help: &str) -> IntCounter {
    registered(name, register_int_counter!(name, help))
}

/// Registers counters, one for each combination of labels.
pub fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    registered(name, register_int_counter_vec!(name, help, labels))
}

/// Registers a histogram with these upper bounds.
pub fn histogram(name: &str, help: &str, buckets: Vec<f64>) -> Histogram {
    registered(name, register_histogram!(name, help, buckets))
}

/// Registers histograms, one for each combination of labels.
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
