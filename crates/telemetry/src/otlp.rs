//! Starts and stops what is sent to a collector by OTLP.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};

use crate::OtlpSettings;
use crate::collector::{Collector, Purpose};
use crate::metrics::SPANS;
use crate::otlp_metrics::MetricsThread;
use crate::span_export::BoundedProcessor;
use crate::traces::Traces;

/// How long the end of the node waits for spans that were not sent.
const FLUSH: Duration = Duration::from_secs(3);

/// Sends spans and metrics to a collector, until it is stopped.
#[derive(Debug, Default)]
pub struct Otlp {
    provider: Option<SdkTracerProvider>,
    metrics: Option<MetricsThread>,
    traces: Traces,
}

/// Why nothing can be sent to a collector.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The certificates of the system cannot be read.
    #[error(
        "`otlp.endpoint` has https:, and the certificates of the system cannot be read; repair them"
    )]
    Certificates(#[source] std::io::Error),
    /// The certificates of `ca_file` are none.
    #[error("`otlp.ca_file` has no certificate that can be used: {0}; write certificates as PEM")]
    Authority(String),
    /// The provider of TLS has none of its versions.
    #[error("TLS cannot be set up for `otlp.endpoint`")]
    Tls(#[source] rustls::Error),
    /// The system refused a thread or a descriptor.
    #[error("the system refused what is needed to send to `otlp.endpoint`")]
    System(#[from] std::io::Error),
    /// The exporter refused its settings.
    #[error("`otlp.endpoint` cannot be sent to")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// What all that is sent says of its sender.
pub(crate) fn about<'a>(settings: &'a OtlpSettings, node: &'a str) -> [(&'static str, &'a str); 3] {
    [
        ("service.name", &*settings.service_name),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", node),
    ]
}

impl Otlp {
    /// Starts the threads that send, if there is a collector. `node` is the name of the node.
    pub fn start(settings: &OtlpSettings, node: &str) -> Result<Self, OtlpError> {
        std::sync::LazyLock::force(&SPANS);
        if !settings.is_on() {
            return Ok(Self::default());
        }
        let collector = Arc::new(Collector::new(settings, Purpose::Telemetry)?);
        let about = about(settings, node);
        let metrics = (settings.metrics_secs > 0)
            .then(|| MetricsThread::start(settings, Arc::clone(&collector), &about))
            .transpose()?;
        let about = about.map(|(key, value)| KeyValue::new(key, value.to_owned()));
        let resource = Resource::builder_empty().with_attributes(about).build();
        let headers = settings.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        let exporter = SpanExporter::builder()
            .with_http()
            .with_shared_http_client(collector)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(settings.url("/v1/traces"))
            .with_headers(headers.collect())
            .with_timeout(Duration::from_millis(settings.timeout_ms))
            .build()?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            // Which messages are traced was decided before their first span.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(BoundedProcessor::start(exporter, settings))
            .build();
        let traces = Traces::new(provider.tracer("roundhouse"), settings);
        Ok(Self { provider: Some(provider), metrics, traces })
    }

    /// Begins spans.
    pub fn traces(&self) -> Traces {
        self.traces.clone()
    }

    /// Sends what waits, spans and metrics for at most three seconds each, and ends the threads. Blocks.
    pub fn stop(self) {
        if let Some(metrics) = self.metrics {
            metrics.stop(FLUSH);
        }
        let Some(provider) = self.provider else { return };
        if let Err(error) = provider.shutdown_with_timeout(FLUSH) {
            tracing::warn!(%error, "the last spans were not sent within three seconds");
        }
    }
}
