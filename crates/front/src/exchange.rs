//! One exchange with a client, from the head of its request to the last byte of its response: it is
//! counted for its tenant, and recorded in the access log.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use actix_http::body::{BodySize, MessageBody as _};
use actix_http::header::HeaderMap;
use actix_http::{Method, Response};
use actors::{Counted, HandshakeSummary, ReplyStream};
use audit::{Audit, Recorder};
use protocol::glance::{self, Kind};
use protocol::{Body as Posted, Message, RequestId, SessionId};
use telemetry::{
    AccessLog, EnteredSpan, ExchangeRecord, Label, OTHER_TENANTS, Outcome, SessionTag,
    TenantLabels, Traces,
};
use tenants::{Principal, Tenant, Tenants};

use crate::audit_reading::RefusalCause;
use crate::audited::Audited;
use crate::body::Body;
use crate::metrics::TenantMeters;
use crate::operations::{self, Operations};
use crate::over_limit::LimitKind;
use crate::route::Endpoint;
use crate::served_session::{note_handshake, note_served};
use crate::server_span::ServerSpan;
use crate::stream_spans::{KeptSpans, StreamSpans};

/// The method of a preflight.
const OPTIONS: &str = "OPTIONS";

/// Where exchanges are reported.
#[derive(Clone, Debug, Default)]
pub struct Reporting {
    /// The access log.
    pub access_log: AccessLog,
    /// The name of this node, for the access log.
    pub node: Arc<str>,
    /// The tenants with metrics of their own.
    pub labels: TenantLabels,
    /// The audit log.
    pub audit: Audit,
    /// Begins the spans of messages that are traced.
    pub traces: Traces,
}

/// Begins exchanges. Each worker has one.
#[derive(Clone)]
pub(crate) struct Exchanges {
    access_log: AccessLog,
    audit: Audit,
    /// The audit log of this worker; off before [`Exchanges::for_worker`].
    recorder: Recorder,
    node: Arc<str>,
    meters: Arc<HashMap<Arc<str>, TenantMeters>>,
    /// Of tenants that came after the start. Made for the first of their requests.
    other_meters: Arc<OnceLock<TenantMeters>>,
    traces: Traces,
    operations: Operations,
}

impl Exchanges {
    pub(crate) fn new(reporting: &Reporting, tenants: &Tenants) -> Self {
        let meters = tenants.by_name().into_iter().map(|tenant| {
            let label = reporting.labels.label(&tenant.name);
            (Arc::clone(&tenant.name), TenantMeters::of(label))
        });
        Self {
            access_log: reporting.access_log.clone(),
            audit: reporting.audit.clone(),
            recorder: Recorder::default(),
            node: Arc::clone(&reporting.node),
            meters: Arc::new(meters.collect()),
            other_meters: Arc::default(),
            traces: reporting.traces.clone(),
            operations: Operations::of_worker(),
        }
    }

    fn meters(&self, tenant: &Tenant) -> TenantMeters {
        let others = || self.other_meters.get_or_init(|| TenantMeters::of(OTHER_TENANTS));
        self.meters.get(&tenant.name).unwrap_or_else(others).clone()
    }

    /// The same for another thread, with a copy of the node's name.
    pub(crate) fn for_worker(&self) -> Self {
        let (recorder, operations) = (self.audit.recorder(), Operations::of_worker());
        Self { node: Arc::from(&*self.node), recorder, operations, ..self.clone() }
    }

    /// Whether messages may be traced.
    pub(crate) fn may_trace(&self) -> bool {
        self.traces.is_on()
    }

    /// The audit log of this worker.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Begins an exchange over HTTP.
    pub(crate) fn begin(
        &self,
        method: &Method,
        endpoint: Option<Endpoint>,
        tenant: Option<&Arc<Tenant>>,
    ) -> Exchange {
        let verb = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::DELETE => "DELETE",
            Method::OPTIONS => OPTIONS,
            _ => "other",
        };
        self.begin_at(verb, endpoint.map_or("none", Endpoint::name), tenant)
    }

    /// Begins the exchange of one line over standard streams.
    pub(crate) fn begin_line(&self, tenant: &Arc<Tenant>) -> Exchange {
        self.begin_at("", "stdio", Some(tenant))
    }

    fn begin_at(
        &self,
        verb: &'static str,
        endpoint: &'static str,
        tenant: Option<&Arc<Tenant>>,
    ) -> Exchange {
        let meters = tenant.map(|tenant| self.meters(tenant));
        let audited = tenant.filter(|_| self.recorder.is_on()).map(|tenant| {
            Box::new(Audited::new(self.recorder.clone(), Arc::clone(&tenant.name), endpoint))
        });
        Exchange(Some(Box::new(Inner {
            began: Instant::now(),
            access_log: self.access_log.clone(),
            meters,
            audited,
            span: ServerSpan::of_exchange(&self.traces),
            operations: self.operations.clone(),
            method: None,
            outcome: None,
            held: Vec::new(),
            record: ExchangeRecord {
                tenant: tenant.map(|tenant| Arc::clone(&tenant.name)),
                ..ExchangeRecord::begun(verb, endpoint, &self.node)
            },
        })))
    }
}

/// One exchange. It is over when this is dropped; without an outcome, because the client left.
#[derive(Debug, Default)]
pub(crate) struct Exchange(Option<Box<Inner>>);

#[derive(Debug)]
struct Inner {
    began: Instant,
    access_log: AccessLog,
    meters: Option<TenantMeters>,
    /// What the audit log records; `None` if it is off, or the request names no tenant.
    audited: Option<Box<Audited>>,
    /// Set if the message may be traced.
    span: Option<Box<ServerSpan>>,
    operations: Operations,
    /// The number of the method of a single message.
    method: Option<usize>,
    outcome: Option<Outcome>,
    /// What limits of the cluster count, until the exchange is over.
    held: Vec<Counted>,
    record: ExchangeRecord,
}

impl Exchange {
    /// Takes the exchange, for a part that outlives this one.
    pub(crate) fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// When the exchange began. `None`: it was taken.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.0.as_ref().map(|inner| inner.began)
    }

    /// Notes the length of the request's body.
    pub(crate) fn received(&mut self, bytes: usize) {
        self.note(|inner| inner.record.bytes_in += bytes as u64);
    }

    /// Notes that so much of the response's body was passed on.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.note(|inner| inner.record.bytes_out += bytes as u64);
    }

    /// What the audit log records of the exchange, if it is on.
    pub(crate) fn audited(&mut self) -> Option<&mut Audited> {
        self.0.as_mut()?.audited.as_deref_mut()
    }

    /// Notes the client.
    pub(crate) fn of_principal(&mut self, principal: &Principal) {
        if let Some(audited) = self.audited() {
            audited.of_principal(principal);
        }
    }

    /// An exchange of its own for the call of this request, which was recorded with others: it ends
    /// with the response to this request.
    pub(crate) fn split(&mut self, request: &RequestId) -> Self {
        let split = self.0.as_mut().and_then(|inner| {
            let audited = inner.audited.as_mut().and_then(|audited| audited.split(request));
            let span = inner.span.as_mut().and_then(|span| span.split(request));
            if audited.is_none() && span.is_none() {
                return None;
            }
            Some(Box::new(Inner {
                began: inner.began,
                access_log: AccessLog::off(),
                meters: None,
                audited: audited.map(Box::new),
                span,
                operations: inner.operations.clone(),
                method: None,
                outcome: None,
                held: Vec::new(),
                record: inner.record.clone(),
            }))
        });
        Self(split)
    }

    /// Notes the session that the request names or opens.
    pub(crate) fn of_session(&mut self, session: &SessionId) {
        if let Some(audited) = self.audited() {
            audited.of_session(session);
        }
        self.note_for_log(|record| record.session = Some(SessionTag::of(session.as_str())));
    }

    /// Has this thread work in the exchange's span, if it is traced, until the result is dropped.
    pub(crate) fn enter_span(&self) -> EnteredSpan {
        telemetry::enter_span(self.0.as_ref().and_then(|inner| inner.record.trace))
    }

    /// Notes what the client posted, within [`telemetry::Spanned`]. Reads no more of it than its first members, unless it is traced: then
    /// its span begins, and the message is in it. `headers` are those of an HTTP request.
    pub(crate) fn posted(&mut self, body: &mut Posted, headers: Option<&HeaderMap>) {
        if let Some(inner) = &mut self.0 {
            inner.method = operations::number_of(body);
            if let Some(span) = &mut inner.span {
                span.begin(body, headers, inner.began, &mut inner.record);
                telemetry::set_current_span(inner.record.trace);
            }
            if let Some(audited) = &mut inner.audited {
                audited.posted(body);
                match inner.record.trace {
                    Some(trace) => audited.of_trace(trace.trace),
                    None => audited.of_trace_of_message(body),
                }
            }
        }
        self.note(|inner| {
            if inner.is_recorded() || inner.audited.is_some() {
                inner.record.method = Some(method_label(body));
            }
        });
        self.note_for_log(|record| {
            let Posted::One(Message::Request(request)) = &*body else { return };
            record.tool = request.tool_name().map(|name| Label::of(&name));
            if request.method == protocol::Method::Initialize
                && let Some(handshake) = HandshakeSummary::of_request(request)
            {
                note_handshake(record, &handshake);
            }
        });
    }

    /// Notes that the answers take the stream of the session, maybe at another node: this exchange says
    /// nothing of how long the request takes.
    pub(crate) fn answered_elsewhere(&mut self, body: &Posted) {
        if matches!(body, Posted::One(Message::Request(_))) {
            self.note(|inner| inner.method = None);
        }
    }

    /// Notes the session's handshake.
    pub(crate) fn of_handshake(&mut self, handshake: Option<&HandshakeSummary>) {
        self.note_for_log(|record| {
            if let Some(handshake) = handshake {
                note_handshake(record, handshake);
            }
        });
    }

    /// Notes what the reply says of its session, and of the node that owns it.
    pub(crate) fn served(&mut self, replies: &ReplyStream) {
        self.note_for_log(|record| note_served(record, replies));
    }

    /// Notes a message of the response: if it is a final response, its outcome. Among several, an error
    /// outweighs the errors of tools, and these the results.
    pub(crate) fn answered(&mut self, message: &[u8]) {
        self.note(|inner| match glance::kind_of(message) {
            Some(Kind::Error) => {
                inner.outcome = Some(Outcome::Error);
                inner.record.code = glance::error_code(message);
            }
            Some(Kind::Result) if inner.outcome == Some(Outcome::Error) => {}
            Some(Kind::Result) if glance::is_tool_error(message) => {
                inner.outcome = Some(Outcome::ToolError);
            }
            Some(Kind::Result) if inner.outcome.is_none() => inner.outcome = Some(Outcome::Result),
            Some(Kind::Result | Kind::Call) | None => {}
        });
        self.note(|inner| {
            if let Some(audited) = &mut inner.audited {
                audited.answered(message);
            }
            if let Some(span) = &mut inner.span {
                span.answered(message, &inner.record);
            }
        });
    }

    /// Notes that the whole response was noted: a request without an answer in it was cancelled.
    pub(crate) fn answered_completely(&mut self) {
        self.note(|inner| {
            if let Some(audited) = &mut inner.audited {
                audited.answered_completely();
            }
            if let Some(span) = &mut inner.span {
                span.answered_completely();
            }
        });
    }

    /// Gives the spans of the requests of this body to the stream that carries their answers, if it is at this
    /// node. To be called before they are dispatched: the answers may come at once.
    pub(crate) fn give_spans(
        &mut self,
        body: &Posted,
        session: &SessionId,
        spans: &StreamSpans,
    ) -> Option<KeptSpans> {
        let inner = self.0.as_mut()?;
        let span = inner.span.as_mut().filter(|_| inner.record.trace.is_some())?;
        match spans.keep(session, span.take_requests(body), &inner.record) {
            Ok(kept) => Some(kept),
            Err(requests) => {
                span.take_back(requests);
                None
            }
        }
    }

    /// Notes a message on the only stream of a session of HTTP+SSE: it may answer a POST of this or
    /// another node.
    pub(crate) fn passed_on(&mut self, message: &[u8]) {
        if let Some(audited) = self.audited() {
            audited.passed_on(message);
        }
    }

    /// Notes how and why the request with these headers is refused.
    pub(crate) fn refused_by(
        &mut self,
        code: i32,
        cause: Option<&RefusalCause>,
        headers: &HeaderMap,
    ) {
        self.refused(code);
        if let Some(audited) = self.audited() {
            audited.of_trace_of_head(headers);
            if let Some(cause) = cause {
                audited.refused_by(cause);
            }
        }
    }

    /// Notes the code of the JSON-RPC error with which the request was refused.
    pub(crate) fn refused(&mut self, code: i32) {
        self.note(|inner| inner.record.code = Some(code));
    }

    /// Counts a request that was refused over a limit.
    pub(crate) fn limited(&mut self, kind: LimitKind) {
        self.note(|inner| {
            if let Some(meters) = &inner.meters {
                meters.count_limited(kind);
            }
        });
    }

    /// Holds what a limit of the cluster counts until the exchange is over.
    pub(crate) fn hold(&mut self, counted: Counted) {
        self.note(|inner| inner.held.push(counted));
    }

    /// Gives back what a limit of the cluster counts.
    pub(crate) fn release(&mut self) {
        self.note(|inner| inner.held.clear());
    }

    /// Sets the outcome, if there is none yet.
    pub(crate) fn end(&mut self, outcome: Outcome) {
        self.note(|inner| inner.outcome = inner.outcome.or(Some(outcome)));
    }

    /// Sets the outcome, in place of one that was noted before.
    pub(crate) fn end_as(&mut self, outcome: Outcome) {
        self.note(|inner| inner.outcome = Some(outcome));
    }

    /// Notes the status; the exchange goes on.
    pub(crate) fn status(&mut self, status: u16) {
        self.note(|inner| inner.record.status = status);
    }

    /// Ends the exchange with a whole response. Does nothing if it was taken.
    pub(crate) fn finish(mut self, response: &Response<Body>) {
        let status = response.status().as_u16();
        self.status(status);
        if let BodySize::Sized(bytes) = response.body().size() {
            self.sent(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
        let is_preflight = self.0.as_ref().is_some_and(|inner| inner.record.verb == OPTIONS);
        match status {
            ..400 if is_preflight => self.end(Outcome::Accepted),
            202 => self.end(Outcome::Accepted),
            204 => self.end(Outcome::Ended),
            ..400 => self.end(Outcome::Streamed),
            400.. => self.end_as(Outcome::Refused),
        }
    }

    fn note(&mut self, note: impl FnOnce(&mut Inner)) {
        if let Some(inner) = &mut self.0 {
            note(inner);
        }
    }

    /// Notes what only the access log and a span need.
    fn note_for_log(&mut self, note: impl FnOnce(&mut ExchangeRecord)) {
        self.note(|inner| {
            if inner.is_recorded() {
                note(&mut inner.record);
            }
        });
    }
}

fn method_label(body: &Posted) -> Label {
    let of = |method: &protocol::Method| {
        method.known_name().map_or_else(|| Label::of(method.as_str()), Label::Known)
    };
    match body {
        Posted::One(Message::Request(request)) => of(&request.method),
        Posted::One(Message::Notification(notification)) => of(&notification.method),
        Posted::One(Message::Response(_)) => Label::Known("response"),
        Posted::Batch(_) => Label::Known("batch"),
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(inner) = self.0.take() {
            inner.report();
        }
    }
}

impl Inner {
    /// Whether more is noted than the metrics and the audit log need.
    fn is_recorded(&self) -> bool {
        self.access_log.is_on() || self.record.trace.is_some()
    }

    fn report(self) {
        let Self { began, access_log, meters, audited, span, .. } = self;
        let Self { operations, method, outcome, mut record, .. } = self;
        record.outcome = outcome.unwrap_or(Outcome::Left);
        let now = Instant::now();
        record.duration = now.duration_since(began);
        if let Some(meters) = meters {
            meters.count(&record);
        }
        if let Some(mut audited) = audited {
            audited.finish(&record, now);
        }
        if let Some(method) = method {
            operations.count(method, &record);
        }
        if let Some(span) = span {
            span.end(&record);
        }
        if access_log.is_on() {
            record.ended_at = SystemTime::now();
            access_log.add(record);
        }
    }
}
