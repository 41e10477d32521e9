//! Logs, the metrics registry and readiness. Independent of MCP.

mod limit_layer;
mod line_limit;
mod logs;
mod metrics;
mod readiness;
pub mod register;

pub use limit_layer::{LIMITED_BY_CALLER, report_left_out};
pub use logs::{Error, Format, Settings, init};
pub use metrics::{METRICS_CONTENT_TYPE, metrics_text};
pub use readiness::Readiness;
