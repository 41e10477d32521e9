//! Logs, the access log, the metrics registry and readiness. Independent of MCP.

mod access_line;
mod access_log;
mod access_queue;
mod access_rate;
mod exchange_record;
mod limit_layer;
mod line_limit;
mod logs;
mod metrics;
mod readiness;
pub mod register;
mod tenant_labels;

pub use access_log::{Access, AccessLog, flush_access_log};
pub use exchange_record::{ExchangeRecord, Label, Outcome, SessionTag};
pub use limit_layer::{LIMITED_BY_CALLER, report_left_out};
pub use logs::{Error, Format, Settings, init};
pub use metrics::{METRICS_CONTENT_TYPE, metrics_text};
pub use readiness::Readiness;
pub use tenant_labels::{OTHER_TENANTS, TenantLabels};
