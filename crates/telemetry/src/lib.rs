//! Logs, the metrics registry and readiness. Independent of MCP.

mod logs;
mod metrics;
mod readiness;
pub mod register;

pub use logs::{Error, Format, Settings, init};
pub use metrics::{METRICS_CONTENT_TYPE, metrics_text};
pub use readiness::Readiness;
