//! Writes the metrics registry as text. The metrics are statics in the `metrics.rs` of each crate,
//! registered with the default registry of the process.

use std::sync::LazyLock;

use prometheus::{Encoder, IntCounter, IntGauge, TextEncoder};

use crate::register;

/// Whether the node is ready.
pub(crate) static READY: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge("roundhouse_ready", "1 while the node is ready for work, else 0.")
});

/// Log lines that were not written.
pub(crate) static LINES_LEFT_OUT: LazyLock<IntCounter> = LazyLock::new(|| {
    register::counter(
        "roundhouse_log_lines_left_out_total",
        "Log lines left out because their call site wrote more than log.lines_per_sec.",
    )
});

/// Why an exchange that should have a line in the access log has none.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeftOut {
    /// Its tenant had as many errors in the second as the log takes.
    Rate = 0,
    /// The queue to the writer was full.
    Full = 1,
}

/// Exchanges left out of the access log.
pub(crate) static ACCESS_LEFT_OUT: LazyLock<[IntCounter; 2]> = LazyLock::new(|| {
    let left_out = register::counters(
        "roundhouse_access_log_left_out_total",
        "Exchanges that should have a line in the access log and have none, by reason.",
        &["reason"],
    );
    ["rate", "full"].map(|reason| left_out.with_label_values(&[reason]))
});

/// What became of a span.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SpanEnd {
    /// The collector accepted it.
    Sent = 0,
    /// The queue to the collector was full.
    Dropped = 1,
    /// The collector was not reached, or refused it.
    Lost = 2,
}

/// Spans by what became of them.
pub(crate) static SPANS: LazyLock<[IntCounter; 3]> = LazyLock::new(|| {
    let spans = register::counters(
        "roundhouse_otlp_spans_total",
        "Spans by what became of them: sent, dropped by a full queue, or lost with a request.",
        &["end"],
    );
    ["sent", "dropped", "lost"].map(|end| spans.with_label_values(&[end]))
});

/// The `Content-Type` of [`metrics_text`].
pub const METRICS_CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Every metric of this process, with those of its memory, processor time and files.
pub fn metrics_text() -> Vec<u8> {
    let mut text = Vec::with_capacity(16 << 10);
    if let Err(error) = TextEncoder::new().encode(&prometheus::gather(), &mut text) {
        tracing::error!(%error, "metrics could not be written; the answer to the scrape is incomplete");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_itself_is_measured() {
        let text = String::from_utf8(metrics_text()).unwrap();
        assert!(text.contains("process_resident_memory_bytes"), "{text}");
        assert!(text.contains("process_open_fds"), "{text}");
    }
}
