//! Sends log records to the collector, in order, one request at a time. What is not acknowledged stays, and is
//! sent again with the same ids.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Response;
use hyper::header::RETRY_AFTER;
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, InstrumentationScope, KeyValue, any_value::Value,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use crate::collector::{Collector, Purpose, SendError};
use crate::otlp::{OtlpError, about};
use crate::request_size::RequestSize;
use crate::{OtlpSettings, TraceId};

/// Most bytes of records in one request. Collectors take several MiB.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The longest wait that a collector may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// One log record.
#[derive(Debug, Default)]
pub struct OtlpLog<'a> {
    /// When it was made, in nanoseconds since 1970.
    pub time: u64,
    /// What happened, as text.
    pub body: &'a str,
    /// The trace that it is of.
    pub trace: Option<TraceId>,
    /// By what records are searched for.
    pub attributes: Vec<(&'static str, &'a str)>,
}

/// Sends log records. Each method blocks its thread.
#[derive(Debug)]
pub struct OtlpLogs {
    collector: Collector,
    url: String,
    headers: Vec<(String, String)>,
    /// The request with the records that are not acknowledged.
    request: ExportLogsServiceRequest,
    bytes: usize,
    size: RequestSize,
    /// Differs from that of every other sender.
    sender: u64,
    /// The number of the next record.
    next: u64,
    /// When the collector wants the next request at the earliest.
    not_before: Option<Instant>,
}

/// Why records were not sent, or may not have arrived. No text has a part of a response or of a header.
#[derive(Debug, thiserror::Error)]
pub enum OtlpLogsError {
    /// The collector cannot be reached, or did not answer.
    #[error("the collector of `otlp.endpoint`: {0}")]
    Unreachable(String),
    /// It answered with an error.
    #[error("the collector of `otlp.endpoint` answered /v1/logs with the status {0}")]
    Status(u16),
    /// It accepted the request and rejected each record in it.
    #[error("the collector of `otlp.endpoint` rejected all records of a request; see its log")]
    Rejected,
    /// It asked for a pause that is not over.
    #[error("the collector of `otlp.endpoint` asked for a pause (`Retry-After`)")]
    Paused,
}

impl OtlpLogs {
    /// A sender to the collector of these settings. `node` is the name of the node, `scope` that of what makes
    /// the records.
    pub fn new(settings: &OtlpSettings, node: &str, scope: &str) -> Result<Self, OtlpError> {
        let attributes = about(settings, node).map(|(key, value)| attribute(key, value)).to_vec();
        let scope = InstrumentationScope { name: scope.to_owned(), ..Default::default() };
        let logs = ScopeLogs { scope: Some(scope), ..ScopeLogs::default() };
        let resource = ResourceLogs {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_logs: vec![logs],
            ..ResourceLogs::default()
        };
        let headers = settings.headers.iter().map(|(name, value)| (name.clone(), value.clone()));
        Ok(Self {
            collector: Collector::new(settings, Purpose::Records)?,
            url: settings.url("/v1/logs"),
            headers: headers.collect(),
            request: ExportLogsServiceRequest { resource_logs: vec![resource] },
            bytes: 0,
            size: RequestSize::new(settings.batch_max),
            // The standard library seeds it at random.
            sender: RandomState::new().build_hasher().finish(),
            next: 0,
            not_before: None,
        })
    }

    /// Whether a request is full: flush before a further record is added.
    pub fn is_full(&self) -> bool {
        self.count() >= self.size.records_max() || self.bytes >= REQUEST_BYTES_MAX
    }

    /// Adds a record to the next request. It gets an id, which it keeps if it is sent again.
    pub fn push(&mut self, log: OtlpLog<'_>) {
        let uid = format!("{:016x}-{}", self.sender, self.next);
        self.next += 1;
        self.bytes += log.body.len();
        let attributes = log.attributes.iter().map(|(key, value)| attribute(key, value));
        let record = LogRecord {
            time_unix_nano: log.time,
            observed_time_unix_nano: log.time,
            severity_number: SeverityNumber::Info.into(),
            severity_text: "INFO".into(),
            body: Some(AnyValue { value: Some(Value::StringValue(log.body.to_owned())) }),
            attributes: attributes.chain([attribute("log.record.uid", &uid)]).collect(),
            trace_id: log.trace.map(|trace| trace.0.to_be_bytes().to_vec()).unwrap_or_default(),
            ..LogRecord::default()
        };
        self.records().extend([record]);
    }

    /// Sends what was added. After an error it stays, for the next attempt. Returns how many records the collector
    /// rejected: these are lost.
    pub fn flush(&mut self) -> Result<u64, OtlpLogsError> {
        let mut rejected = 0;
        while self.count() > 0 {
            rejected += self.send()?;
        }
        self.bytes = 0;
        Ok(rejected)
    }

    /// Sends one request, with as many records as one may have.
    fn send(&mut self) -> Result<u64, OtlpLogsError> {
        if self.not_before.is_some_and(|at| Instant::now() < at) {
            return Err(OtlpLogsError::Paused);
        }
        self.not_before = None;
        let count = self.count().min(self.size.records_max());
        let mut rest = self.records().split_off(count);
        let body = Bytes::from(self.request.encode_to_vec());
        let answered = self.collector.post(&self.url, &self.headers, body);
        let sent = self.judge(answered, count as u64);
        match &sent {
            Ok(_) => *self.records() = rest,
            Err(_) => self.records().append(&mut rest),
        }
        match sent {
            Err(OtlpLogsError::Status(413)) if self.size.refused(count, Instant::now()) => Ok(0),
            Err(error) => Err(error),
            Ok(rejected) => {
                self.size.taken(count, Instant::now());
                Ok(rejected)
            }
        }
    }

    /// What the collector's answer means for a request with so many records.
    fn judge(
        &mut self,
        answered: Result<Response<Bytes>, SendError>,
        count: u64,
    ) -> Result<u64, OtlpLogsError> {
        let response = answered.map_err(|error| OtlpLogsError::Unreachable(error.innermost()))?;
        if !response.status().is_success() {
            self.not_before = pause_of(&response).map(|pause| Instant::now() + pause);
            return Err(OtlpLogsError::Status(response.status().as_u16()));
        }
        // A collector may answer with nothing.
        let body = ExportLogsServiceResponse::decode(response.into_body()).unwrap_or_default();
        let rejected = body.partial_success.map_or(0, |partial| partial.rejected_log_records);
        let rejected = u64::try_from(rejected).unwrap_or_default();
        if rejected >= count { Err(OtlpLogsError::Rejected) } else { Ok(rejected) }
    }

    fn count(&self) -> usize {
        self.request.resource_logs.iter().flat_map(|one| &one.scope_logs).map(records_of).sum()
    }

    fn records(&mut self) -> &mut Vec<LogRecord> {
        &mut self.request.resource_logs[0].scope_logs[0].log_records
    }
}

fn records_of(logs: &ScopeLogs) -> usize {
    logs.log_records.len()
}

/// How long the collector wants no request, if it answered that it is overloaded.
fn pause_of(response: &Response<Bytes>) -> Option<Duration> {
    let is_overload = [429, 503].contains(&response.status().as_u16());
    let secs = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    is_overload.then(|| Duration::from_secs(secs).min(RETRY_AFTER_MAX))
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}
