//! The metrics registry as text. The metrics themselves are statics in the `metrics.rs`
//! of the crate they are about, registered with the registry that every process has one of.

use std::sync::LazyLock;

use prometheus::{Encoder, IntGauge, TextEncoder};

use crate::register;

/// Would the node like to be sent work?
pub(crate) static READY: LazyLock<IntGauge> = LazyLock::new(|| {
    register::gauge("roundhouse_ready", "1 while the node is ready for work, else 0.")
});

/// What [`metrics_text`] is, for the header that says so.
pub const METRICS_CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Every metric of this process, the process's own memory, time and files among them.
pub fn metrics_text() -> Vec<u8> {
    let mut text = Vec::with_capacity(16 << 10);
    if let Err(error) = TextEncoder::new().encode(&prometheus::gather(), &mut text) {
        tracing::error!(%error, "the metrics cannot be written");
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
