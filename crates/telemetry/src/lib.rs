//! Logs, the access log, traces, the metrics registry and readiness. Independent of MCP.

mod access_line;
mod access_log;
mod access_queue;
mod access_rate;
mod collector;
mod current_span;
mod durations;
mod exchange_record;
mod limit_layer;
mod line_limit;
mod logs;
mod metrics;
mod otlp;
mod otlp_logs;
mod otlp_metrics;
mod otlp_settings;
mod readiness;
pub mod register;
mod request_size;
mod span_export;
mod tenant_labels;
mod traces;

pub use access_log::{Access, AccessLog, flush_access_log};
pub use current_span::{EnteredSpan, Spanned, current_span, enter_span, set_current_span};
pub use durations::{DurationLabel, DurationNames, DurationObserver, Durations};
pub use exchange_record::{ExchangeRecord, Label, Outcome, SessionTag};
pub use limit_layer::{LIMITED_BY_CALLER, report_left_out};
pub use logs::{Error, Format, Settings, init};
pub use metrics::{METRICS_CONTENT_TYPE, metrics_text};
pub use otlp::{Otlp, OtlpError};
pub use otlp_logs::{OtlpLog, OtlpLogs, OtlpLogsError};
pub use otlp_settings::{OtlpProblem, OtlpSettings};
pub use readiness::Readiness;
pub use tenant_labels::{OTHER_TENANTS, TenantLabels};
pub use traces::{Before, Side, Span, SpanRef, TraceId, Traces};
