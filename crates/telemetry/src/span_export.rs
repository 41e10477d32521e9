//! The way of a span from the thread that ends it to the collector: a bounded queue, and a thread that
//! sends what is in it. A span that finds the queue full is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor,
};

use crate::OtlpSettings;
use crate::metrics::{SPANS, SpanEnd};

/// Puts spans into the queue of the thread that sends them.
#[derive(Debug)]
pub(crate) struct BoundedProcessor {
    /// Its own queue has as many places, so it never drops a span without our count.
    inner: BatchSpanProcessor,
    waiting: Arc<AtomicUsize>,
    queue_max: usize,
}

impl BoundedProcessor {
    /// Starts the thread. It sends by this exporter.
    pub(crate) fn start(exporter: impl SpanExporter + 'static, settings: &OtlpSettings) -> Self {
        let waiting = Arc::new(AtomicUsize::new(0));
        let exporter = CountingExporter { inner: exporter, waiting: Arc::clone(&waiting) };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(settings.queue_max)
            .with_max_export_batch_size(settings.batch_max)
            .with_scheduled_delay(Duration::from_millis(settings.batch_ms))
            .build();
        let inner = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        Self { inner, waiting, queue_max: settings.queue_max }
    }
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.queue_max {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            SPANS[SpanEnd::Dropped as usize].inc();
            return;
        }
        self.inner.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Counts the spans that were sent, and those that were lost.
#[derive(Debug)]
struct CountingExporter<E> {
    inner: E,
    waiting: Arc<AtomicUsize>,
}

impl<E: SpanExporter> SpanExporter for CountingExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        let sent = self.inner.export(batch).await;
        let end = if sent.is_ok() { SpanEnd::Sent } else { SpanEnd::Lost };
        SPANS[end as usize].inc_by(spans as u64);
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
