//! Sends records to a collector of OpenTelemetry, as log records.
//!
//! A record is written when the collector has acknowledged it. Records that it may have got are sent again
//! with the same ids, so each arrives at least once, in order.

use std::borrow::Cow;
use std::io;
use std::time::{Duration, Instant};

use serde::Deserialize;
use telemetry::{OtlpError, OtlpLog, OtlpLogs, OtlpSettings, TraceId};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::metrics::REJECTED;

/// The least time between two reports of records that the collector rejected.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// A collector.
pub(crate) struct OtlpSink {
    logs: OtlpLogs,
    reported_at: Option<Instant>,
    /// Rejected records that no line of the log counts yet.
    rejected: u64,
}

/// What of a record is an attribute, too.
#[derive(Default, Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    call: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tenant: Option<Cow<'a, str>>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    tool: Option<Cow<'a, str>>,
    #[serde(borrow)]
    trace: Option<Cow<'a, str>>,
}

impl OtlpSink {
    pub(crate) fn new(settings: &OtlpSettings, node: &str) -> Result<Self, OtlpError> {
        let logs = OtlpLogs::new(settings, node, "roundhouse.audit")?;
        Ok(Self { logs, reported_at: None, rejected: 0 })
    }

    /// Takes as many lines as one request has room for. Sends those before them if there is none.
    pub(crate) fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if self.logs.is_full() {
            self.flush()?;
        }
        let mut taken = 0;
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if self.logs.is_full() {
                break;
            }
            let text = std::str::from_utf8(line.trim_ascii_end()).unwrap_or_default();
            self.push(text);
            taken += line.len();
        }
        Ok(taken)
    }

    fn push(&mut self, line: &str) {
        // The line is the crate's own. One that cannot be read is sent as it is.
        let fields: Fields<'_> = serde_json::from_str(line).unwrap_or_default();
        let named = [
            ("roundhouse.audit.kind", Some(&fields.kind)),
            ("roundhouse.audit.call", fields.call.as_ref()),
            ("roundhouse.tenant", fields.tenant.as_ref()),
            ("mcp.method.name", fields.method.as_ref()),
            ("gen_ai.tool.name", fields.tool.as_ref()),
        ];
        let attributes = named.iter().filter_map(|(key, value)| Some((*key, &***value.as_ref()?)));
        let at = OffsetDateTime::parse(&fields.time, &Rfc3339).ok();
        let time = at.and_then(|at| u64::try_from(at.unix_timestamp_nanos()).ok());
        let trace = fields.trace.and_then(|trace| u128::from_str_radix(&trace, 16).ok());
        self.logs.push(OtlpLog {
            time: time.unwrap_or_default(),
            body: line,
            trace: trace.map(TraceId),
            attributes: attributes.collect(),
        });
    }

    /// Sends what was taken, and waits until the collector has it.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let rejected = self.logs.flush().map_err(io::Error::other)?;
        REJECTED.inc_by(rejected);
        self.rejected += rejected;
        if self.rejected > 0 && self.reported_at.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
            self.reported_at = Some(Instant::now());
            let records = std::mem::take(&mut self.rejected);
            tracing::error!(
                records,
                "audit records are lost: the collector of `otlp.endpoint` rejected them; see its log"
            );
        }
        Ok(())
    }
}
