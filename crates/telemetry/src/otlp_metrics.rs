//! Sends the registry of metrics to a collector, at an interval, on a thread of its own. The histograms of
//! durations have the names of OpenTelemetry's conventions; all other metrics have their own.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric::Data,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prometheus::proto::{LabelPair, MetricFamily, MetricType};
use prost::Message as _;

use crate::OtlpSettings;
use crate::collector::Collector;
use crate::durations::{self, BOUNDS, Durations, Observed};

/// The thread that sends metrics.
#[derive(Debug)]
pub(crate) struct MetricsThread {
    stop: SyncSender<()>,
    stopped: Receiver<()>,
}

/// What is sent with all metrics.
struct Sender {
    collector: Arc<Collector>,
    url: String,
    headers: Vec<(String, String)>,
    resource: Resource,
    /// When this process began to count.
    began: u64,
}

impl MetricsThread {
    /// Starts the thread.
    pub(crate) fn start(
        settings: &OtlpSettings,
        collector: Arc<Collector>,
        resource: &[(&str, &str)],
    ) -> std::io::Result<Self> {
        let (stop, stopping) = sync_channel(1);
        let (ended, stopped) = sync_channel(1);
        let every = Duration::from_secs(settings.metrics_secs);
        let attributes = resource.iter().map(|(key, value)| attribute(key, value)).collect();
        let headers = settings.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        let sender = Sender {
            collector,
            url: settings.url("/v1/metrics"),
            headers: headers.collect(),
            resource: Resource { attributes, ..Resource::default() },
            began: now(),
        };
        std::thread::Builder::new().name("otlp-metrics".into()).spawn(move || {
            loop {
                let waited = stopping.recv_timeout(every);
                sender.send();
                if !matches!(waited, Err(RecvTimeoutError::Timeout)) {
                    break;
                }
            }
            // The node may have stopped waiting for it.
            let _ = ended.try_send(());
        })?;
        Ok(Self { stop, stopped })
    }

    /// Has the thread send for the last time, and waits for that.
    pub(crate) fn stop(self, within: Duration) {
        let _ = self.stop.try_send(());
        let _ = self.stopped.recv_timeout(within);
    }
}

impl Sender {
    /// Sends what the registry has now. The collector's client reports what goes wrong.
    fn send(&self) {
        let body = Bytes::from(self.metrics().encode_to_vec());
        let _ = self.collector.post(&self.url, &self.headers, body);
    }

    fn metrics(&self) -> ExportMetricsServiceRequest {
        let times = Times { began: self.began, now: now() };
        let durations = durations::registered();
        let is_duration = |name: &str| durations.iter().any(|of| of.names().name == name);
        let registry = prometheus::gather();
        let registry = registry.iter().filter(|family| !is_duration(family.name()));
        let metrics = registry.filter_map(|family| times.metric(family));
        let metrics = metrics.chain(durations.iter().map(|durations| times.durations(durations)));
        let scope = InstrumentationScope { name: "roundhouse".into(), ..Default::default() };
        let metrics = ScopeMetrics {
            scope: Some(scope),
            metrics: metrics.collect(),
            ..ScopeMetrics::default()
        };
        let resource = ResourceMetrics {
            resource: Some(self.resource.clone()),
            scope_metrics: vec![metrics],
            ..ResourceMetrics::default()
        };
        ExportMetricsServiceRequest { resource_metrics: vec![resource] }
    }
}

/// The time that the values of one request are of.
#[derive(Clone, Copy)]
struct Times {
    began: u64,
    now: u64,
}

/// Each value is the sum since the start of the process.
const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

impl Times {
    /// A metric of the registry; `None` for kinds that it does not have.
    fn metric(self, family: &MetricFamily) -> Option<Metric> {
        let all = family.get_metric();
        let data = match family.get_field_type() {
            MetricType::COUNTER => Data::Sum(Sum {
                data_points: all
                    .iter()
                    .map(|one| self.number(one.get_label(), one.get_counter().get_value()))
                    .collect(),
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            }),
            MetricType::GAUGE => Data::Gauge(Gauge {
                data_points: all
                    .iter()
                    .map(|one| self.number(one.get_label(), one.get_gauge().get_value()))
                    .collect(),
            }),
            MetricType::HISTOGRAM => Data::Histogram(Histogram {
                data_points: all
                    .iter()
                    .map(|one| self.histogram(one.get_label(), one.get_histogram()))
                    .collect(),
                aggregation_temporality: CUMULATIVE,
            }),
            _ => return None,
        };
        let (name, description) = (family.name().to_owned(), family.help().to_owned());
        Some(Metric { name, description, data: Some(data), ..Metric::default() })
    }

    fn number(self, labels: &[LabelPair], value: f64) -> NumberDataPoint {
        NumberDataPoint {
            attributes: labels.iter().map(|one| attribute(one.name(), one.value())).collect(),
            start_time_unix_nano: self.began,
            time_unix_nano: self.now,
            value: Some(Number::AsDouble(value)),
            ..NumberDataPoint::default()
        }
    }

    fn histogram(
        self,
        labels: &[LabelPair],
        histogram: &prometheus::proto::Histogram,
    ) -> HistogramDataPoint {
        let count = histogram.get_sample_count();
        let finite = histogram.get_bucket().iter().filter(|one| one.upper_bound().is_finite());
        let (mut bounds, mut counts, mut below) = (Vec::new(), Vec::new(), 0);
        for bucket in finite {
            bounds.push(bucket.upper_bound());
            counts.push(bucket.cumulative_count() - below);
            below = bucket.cumulative_count();
        }
        counts.push(count.saturating_sub(below));
        HistogramDataPoint {
            attributes: labels.iter().map(|one| attribute(one.name(), one.value())).collect(),
            start_time_unix_nano: self.began,
            time_unix_nano: self.now,
            count,
            sum: Some(histogram.get_sample_sum()),
            bucket_counts: counts,
            explicit_bounds: bounds,
            ..HistogramDataPoint::default()
        }
    }

    /// A histogram of durations, by the names of the conventions.
    fn durations(self, durations: &Durations) -> Metric {
        let names = durations.names();
        let point = |observed: Observed| HistogramDataPoint {
            attributes: names
                .labels
                .iter()
                .zip(observed.values)
                .map(|(label, value)| (label.attribute, label.values[value]))
                .filter(|(_, value)| !value.is_empty())
                .map(|(key, value)| attribute(key, value))
                .collect(),
            start_time_unix_nano: self.began,
            time_unix_nano: self.now,
            count: observed.buckets.iter().sum(),
            sum: Some(observed.seconds),
            bucket_counts: observed.buckets.to_vec(),
            explicit_bounds: BOUNDS.to_vec(),
            ..HistogramDataPoint::default()
        };
        let histogram = Histogram {
            data_points: durations.observed().into_iter().map(point).collect(),
            aggregation_temporality: CUMULATIVE,
        };
        Metric {
            name: names.convention.into(),
            description: names.help.into(),
            unit: "s".into(),
            data: Some(Data::Histogram(histogram)),
            ..Metric::default()
        }
    }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
