//! The audit records of one exchange: of what it dispatches, and how that ended, or why nothing was
//! dispatched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_http::header::HeaderMap;
use audit::{
    CallId, Entry, Full, Held, Origin, OriginSource, Recorder, SessionDigest, SessionOrigin, Ticket,
};
use bytes::Bytes;
use protocol::{About, Body as Posted, Message, Method, Rejection, Request, RequestId, SessionId};
use telemetry::{ExchangeRecord, Outcome, TraceId};
use tenants::{Principal, Tenant};

use crate::audit_reading::{
    RefusalCause, cancelled_id, fields, final_response, named, request_name, trace_id, trace_of,
    who,
};
use crate::open_calls::{Calls, OpenCall};
use crate::permissions::NotPermitted;
use crate::unanswered::Handling;

/// Why a call without a record is refused.
const UNRECORDED: &str = "audit";

/// What is about to be dispatched.
pub(crate) enum Dispatched<'a> {
    /// The messages of a body, whose responses this exchange carries.
    Posted(&'a Posted),
    /// The messages of a body, whose responses the stream of the session carries.
    AnsweredElsewhere(&'a Posted),
    /// One request.
    Request(&'a Request),
    /// The end of the session.
    EndOfSession,
}

/// How many of the records are added.
#[derive(Clone, Copy, Debug, Default)]
struct Admitted {
    /// The members of a batch that have their records.
    members: usize,
    /// That of the last record.
    last: Option<Ticket>,
}

/// What is recorded of one exchange.
#[derive(Debug)]
pub(crate) struct Audited {
    recorder: Recorder,
    tenant: Arc<str>,
    endpoint: &'static str,
    principal: Option<Principal>,
    session: Option<SessionId>,
    /// The trace of the message, if it is traced.
    trace: Option<Arc<str>>,
    /// The calls with a `begin` and no `end`.
    calls: Calls,
    /// Whether the calls were dispatched.
    is_dispatched: bool,
    /// Whether another exchange, perhaps of another node, carries the responses.
    is_answered_elsewhere: bool,
    /// The message of the body, if it is one request, until it is recorded.
    posted: Option<Bytes>,
    /// Why the request is refused, and whether its sender is not known.
    refusal: Option<(&'static str, bool)>,
    /// Whether a record says already that the request was refused.
    is_refusal_recorded: bool,
    /// The places in the batch of the members that are over a limit, which have their records.
    over_limits: Vec<usize>,
}

impl Audited {
    /// Nothing yet, of an exchange at this endpoint of the tenant.
    pub(crate) fn new(recorder: Recorder, tenant: Arc<str>, endpoint: &'static str) -> Self {
        Self {
            recorder,
            tenant,
            endpoint,
            principal: None,
            session: None,
            trace: None,
            calls: Calls::None,
            is_dispatched: false,
            is_answered_elsewhere: false,
            posted: None,
            refusal: None,
            is_refusal_recorded: false,
            over_limits: Vec::new(),
        }
    }

    /// Notes the client.
    pub(crate) fn of_principal(&mut self, principal: &Principal) {
        self.principal = Some(principal.clone());
    }

    /// Notes the session.
    pub(crate) fn of_session(&mut self, session: &SessionId) {
        self.session = Some(session.clone());
    }

    /// Notes what the client posted.
    pub(crate) fn posted(&mut self, body: &Posted) {
        if let Posted::One(Message::Request(request)) = body {
            self.posted = Some(request.raw().clone());
        }
    }

    /// Notes the trace that the message is in.
    pub(crate) fn of_trace(&mut self, trace: TraceId) {
        self.trace = Some(trace.to_string().into());
    }

    /// Notes the trace that a message names which is not traced here. Members of a batch have traces of their
    /// own.
    pub(crate) fn of_trace_of_message(&mut self, body: &Posted) {
        if let Posted::One(message) = body
            && let Some(trace) = trace_of(message)
        {
            self.of_trace(trace);
        }
    }

    /// Notes the trace that the head of the request names, if its message names none.
    pub(crate) fn of_trace_of_head(&mut self, headers: &HeaderMap) {
        if self.trace.is_none() {
            let named = headers.get("traceparent").and_then(|value| value.to_str().ok());
            self.trace = named.and_then(trace_id).map(Arc::from);
        }
    }

    /// Notes why the request is refused.
    pub(crate) fn refused_by(&mut self, cause: &RefusalCause) {
        self.refusal = Some(match cause {
            RefusalCause::Reason(reason) => (*reason, false),
            RefusalCause::SignIn(problem, client) => {
                if let Some(client) = client {
                    self.of_principal(client);
                }
                (problem.as_str(), true)
            }
        });
    }

    /// Records what is about to be dispatched, and waits until that is written. After an error it must
    /// not be dispatched; otherwise [`Self::set_dispatched`] follows.
    pub(crate) async fn record(
        &mut self,
        tenant: &Tenant,
        dispatched: Dispatched<'_>,
        traceparent: Option<&str>,
    ) -> Result<(), Held> {
        let ticket = self.admit_in_time(tenant, dispatched, traceparent).await?;
        let written = match ticket {
            Some(ticket) => self.recorder.written(ticket).await,
            None => Ok(()),
        };
        if written.is_err() {
            self.hold_back();
        }
        written
    }

    /// Records what is about to be dispatched, and waits until there is room for that. It must not be
    /// dispatched before the ticket's record is written.
    pub(crate) async fn admit_in_time(
        &mut self,
        tenant: &Tenant,
        dispatched: Dispatched<'_>,
        traceparent: Option<&str>,
    ) -> Result<Option<Ticket>, Held> {
        let mut admitted = Admitted::default();
        match self.admit(tenant, &dispatched, traceparent, &mut admitted) {
            Ok(()) => Ok(admitted.last),
            // Boxed: there is nearly always room.
            Err(full) => {
                let waiting = self.wait_for_room(tenant, dispatched, traceparent, admitted, full);
                Box::pin(waiting).await
            }
        }
    }

    async fn wait_for_room(
        &mut self,
        tenant: &Tenant,
        dispatched: Dispatched<'_>,
        traceparent: Option<&str>,
        mut admitted: Admitted,
        mut full: Full,
    ) -> Result<Option<Ticket>, Held> {
        let mut until = None;
        loop {
            if let Err(held) = self.recorder.room(full, &mut until).await {
                self.hold_back();
                return Err(held);
            }
            match self.admit(tenant, &dispatched, traceparent, &mut admitted) {
                Ok(()) => return Ok(admitted.last.map(|ticket| ticket.until(until))),
                Err(again) => full = again,
            }
        }
    }

    /// The log of this thread.
    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Notes that what was recorded is dispatched.
    pub(crate) fn set_dispatched(&mut self) {
        self.is_dispatched = true;
    }

    /// Adds the records that are not added yet.
    fn admit(
        &mut self,
        tenant: &Tenant,
        dispatched: &Dispatched<'_>,
        traceparent: Option<&str>,
        admitted: &mut Admitted,
    ) -> Result<(), Full> {
        let traced = self.trace.clone();
        let trace = traced.as_deref().or_else(|| traceparent.and_then(trace_id));
        self.posted = None;
        self.is_answered_elsewhere = matches!(dispatched, Dispatched::AnsweredElsewhere(_));
        match dispatched {
            Dispatched::Request(request) => {
                admitted.last = Some(self.begin(tenant, request, trace, true)?);
            }
            Dispatched::Posted(Posted::One(message)) => {
                admitted.last = self.admit_message(tenant, message, trace, true)?;
            }
            Dispatched::AnsweredElsewhere(Posted::One(message)) => {
                admitted.last = self.admit_message(tenant, message, trace, false)?;
            }
            Dispatched::Posted(Posted::Batch(members))
            | Dispatched::AnsweredElsewhere(Posted::Batch(members)) => {
                for member in members.iter().skip(admitted.members) {
                    let ticket = self.admit_member(tenant, member, trace)?;
                    // A record that was left out does not end the wait for those before it.
                    if ticket.is_some_and(Ticket::waits) || admitted.last.is_none() {
                        admitted.last = ticket;
                    }
                    admitted.members += 1;
                }
            }
            Dispatched::EndOfSession => {
                let entry = Entry { action: Some("end_session"), trace, ..self.entry() };
                admitted.last = Some(self.recorder.message(&self.tenant, &entry)?);
            }
        }
        Ok(())
    }

    /// Adds the record of one member of a batch. A refused one has its record already.
    fn admit_member(
        &mut self,
        tenant: &Tenant,
        member: &Result<Message, Rejection>,
        trace: Option<&str>,
    ) -> Result<Option<Ticket>, Full> {
        let message = match member {
            Ok(message) => message,
            Err(rejection) => {
                self.calls.members().add_refused(rejection);
                return Ok(None);
            }
        };
        let own = trace_of(message).map(|own| own.to_string());
        let ticket = self.admit_message(tenant, message, own.as_deref().or(trace), false)?;
        self.calls.members().note_cancelled(message);
        Ok(ticket)
    }

    fn admit_message(
        &mut self,
        tenant: &Tenant,
        message: &Message,
        trace: Option<&str>,
        is_only: bool,
    ) -> Result<Option<Ticket>, Full> {
        let bytes_in = Some(message.raw().len() as u64);
        match message {
            // The session answers it. On the stream of a session its response looks like others.
            Message::Request(request)
                if request.method == Method::Ping && !self.is_answered_elsewhere =>
            {
                if !is_only {
                    self.calls.members().add(&request.id, Handling::Ping, None);
                }
                Ok(None)
            }
            Message::Request(request) => self.begin(tenant, request, trace, is_only).map(Some),
            Message::Notification(notification) => {
                let cancelled = cancelled_id(notification);
                let method = Some(notification.method.as_str());
                let request = cancelled.as_ref().map(request_name);
                let entry = Entry { method, request, bytes_in, trace, ..self.entry() };
                self.recorder.message(&self.tenant, &entry).map(Some)
            }
            Message::Response(response) => {
                let request = response.id.as_ref().map(request_name);
                let method = Some("response");
                let entry = Entry { method, request, bytes_in, trace, ..self.entry() };
                self.recorder.message(&self.tenant, &entry).map(Some)
            }
        }
    }

    fn begin(
        &mut self,
        tenant: &Tenant,
        request: &Request,
        trace: Option<&str>,
        is_only: bool,
    ) -> Result<Ticket, Full> {
        let call = match (&self.session, self.is_answered_elsewhere) {
            (Some(session), true) => CallId::of_request(session.as_str(), &request.id.to_json()),
            _ => self.recorder.next_call(),
        };
        let about = About::of(request);
        // A member of a batch may be in a trace of its own.
        let own = request.trace.as_ref().map(|own| TraceId(own.trace).to_string());
        let params = match tenant.audited_fields.is_empty() {
            true => None,
            false => request.params(),
        };
        let fields = params.as_ref().map(|params| fields(tenant, request, params));
        let entry = Entry {
            call: Some(call),
            request: Some(request_name(&request.id)),
            method: Some(request.method.as_str()),
            about: about.subject.as_ref().map(|(kind, name)| (*kind, &**name)),
            is_ambiguous: about.is_ambiguous,
            fields: fields.as_deref().unwrap_or_default(),
            bytes_in: Some(request.raw().len() as u64),
            trace: own.as_deref().or(trace),
            ..self.entry()
        };
        let ticket = self.recorder.begin(&self.tenant, &entry)?;
        let opens_session = request.method == Method::Initialize && self.session.is_none();
        if is_only {
            self.calls = Calls::One(OpenCall { call, began: None, opens_session });
        } else {
            let open = OpenCall { call, began: Some(Instant::now()), opens_session };
            self.calls.members().add(&request.id, Handling::Sent, Some(open));
        }
        Ok(ticket)
    }

    /// What is known of each record of the exchange.
    fn entry(&self) -> Entry<'_> {
        Entry { origin: self.origin(), trace: self.trace.as_deref(), ..Entry::default() }
    }

    fn origin(&self) -> OriginSource<'_> {
        let client = self.principal.as_ref().map(Principal::name).unwrap_or_default();
        let endpoint = self.endpoint;
        match &self.session {
            Some(session) => {
                let session = session.as_str();
                OriginSource::Session(SessionOrigin { session, client, endpoint, of_client: who })
            }
            None => Origin { endpoint: Some(endpoint), ..who(client) }.into(),
        }
    }

    fn digest(&self) -> Option<SessionDigest> {
        self.session.as_ref().map(|session| SessionDigest::of(session.as_str()))
    }

    /// Records that what was about to be dispatched is refused: it has no record in time.
    pub(crate) fn hold_back(&mut self) {
        self.recorder.count_held(&self.tenant);
        self.is_refusal_recorded = true;
        let (reason, mut has_calls) = (Some(UNRECORDED), false);
        for (open, outcome) in std::mem::take(&mut self.calls).at_end(Outcome::Refused) {
            has_calls = true;
            let (call, outcome) = (Some(open.call), Some(outcome.as_str()));
            let entry = Entry { call, outcome, reason, ..Entry::default() };
            self.recorder.end(&self.tenant, &entry);
        }
        if !has_calls {
            self.recorder.refused(&self.tenant, &Entry { reason, ..self.entry() });
        }
    }

    /// Records the messages that the client may not send, or that are malformed. `raw` is the body as
    /// it arrived.
    pub(crate) fn judged(&mut self, judged: &Result<Posted, NotPermitted>, raw: &Bytes) {
        let has_refused = match judged {
            Ok(Posted::One(_)) => false,
            Ok(Posted::Batch(members)) => members.iter().any(Result::is_err),
            Err(_) => true,
        };
        if !has_refused {
            return;
        }
        let Ok(posted) = protocol::parse(raw.clone(), &protocol::Limits::default()) else { return };
        match (judged, &posted) {
            (Err(why), Posted::One(message)) => {
                self.is_refusal_recorded = true;
                self.refuse(message, "permissions", why.code());
            }
            (Ok(Posted::Batch(after)), Posted::Batch(before)) => {
                for (at, (after, before)) in std::iter::zip(after, before).enumerate() {
                    match (after, before) {
                        // By its place: a client may use an id twice.
                        (Err(_), Ok(_)) if self.over_limits.contains(&at) => {}
                        (Err(rejection), Ok(message)) => {
                            self.refuse(message, "permissions", Some(rejection.code.number()));
                        }
                        (Err(rejection), Err(_)) => {
                            let code = Some(rejection.code.number());
                            let reason = Some("malformed");
                            let entry = Entry { reason, code, ..self.entry() };
                            self.recorder.refused(&self.tenant, &entry);
                        }
                        (Ok(_), _) => {}
                    }
                }
            }
            _ => {}
        }
    }

    /// Records that a message is over a limit, or that no limit can be found for it. `at`: its place in a
    /// batch.
    pub(crate) fn over_limit(
        &mut self,
        message: &Message,
        reason: &'static str,
        code: i32,
        at: Option<usize>,
    ) {
        self.refuse(message, reason, Some(code));
        match at {
            None => self.is_refusal_recorded = true,
            Some(at) => self.over_limits.push(at),
        }
    }

    /// Records that a message is refused, and not dispatched.
    pub(crate) fn refuse(&self, message: &Message, reason: &'static str, code: Option<i32>) {
        let (method, about, id) = named(message);
        let entry = Entry {
            request: id,
            method: Some(method),
            about: about.subject.as_ref().map(|(kind, name)| (*kind, &**name)),
            is_ambiguous: about.is_ambiguous,
            reason: Some(reason),
            code,
            bytes_in: Some(message.raw().len() as u64),
            ..self.entry()
        };
        self.recorder.refused(&self.tenant, &entry);
    }

    /// The call of one of several requests, as an exchange of its own.
    pub(crate) fn split(&mut self, request: &RequestId) -> Option<Self> {
        let call = self.calls.take_first(request)?;
        Some(Self {
            recorder: self.recorder.clone(),
            tenant: Arc::clone(&self.tenant),
            principal: self.principal.clone(),
            session: self.session.clone(),
            trace: self.trace.clone(),
            calls: Calls::One(call),
            posted: None,
            over_limits: Vec::new(),
            ..*self
        })
    }

    /// Notes a message of the response. Of several calls, the one that it answers ends.
    pub(crate) fn answered(&mut self, message: &[u8]) {
        let Calls::Many(calls) = &mut self.calls else { return };
        if self.is_answered_elsewhere {
            return;
        }
        let Some((id, outcome, code)) = final_response(message) else { return };
        if let Some(open) = calls.take_answered(&id, code) {
            let entry = Entry {
                call: Some(open.call),
                outcome: Some(outcome.as_str()),
                code,
                duration: open.began.map(|began| began.elapsed()),
                bytes_out: Some(message.len() as u64),
                ..Entry::default()
            };
            self.recorder.end(&self.tenant, &entry);
        }
    }

    /// Notes that all messages of the response were noted.
    pub(crate) fn answered_completely(&mut self) {
        if let Calls::Many(calls) = &mut self.calls {
            calls.set_complete();
        }
    }

    /// Records the end of the call that a message on the stream of a session of HTTP+SSE answers. The
    /// POST of the call may have been at another node, so the call's id follows from the request.
    pub(crate) fn passed_on(&mut self, message: &[u8]) {
        let Some((id, outcome, code)) = final_response(message) else { return };
        let Some(session) = &self.session else { return };
        let call = CallId::of_request(session.as_str(), &id.to_json());
        let entry = Entry {
            call: Some(call),
            outcome: Some(outcome.as_str()),
            code,
            bytes_out: Some(message.len() as u64),
            ..Entry::default()
        };
        self.recorder.end(&self.tenant, &entry);
    }

    /// Records how the exchange ended: of the calls without an end, or that it was refused.
    pub(crate) fn finish(&mut self, record: &ExchangeRecord, now: Instant) {
        let status = Some(record.status).filter(|status| *status != 0);
        let calls = std::mem::take(&mut self.calls);
        if calls.is_none() {
            return self.finish_without_calls(record, status);
        }
        // Their responses are still to come.
        if self.is_answered_elsewhere && record.outcome == Outcome::Accepted {
            return;
        }
        let is_one = matches!(calls, Calls::One(_));
        for (call, outcome) in calls.at_end(record.outcome) {
            let (name, code) = match (self.is_dispatched, outcome) {
                // The client left while the record was written, or while its token was exchanged.
                (false, Outcome::Left) => ("not_dispatched", record.code),
                (_, outcome) if outcome == record.outcome => (outcome.as_str(), record.code),
                // The code is of another member of the batch.
                (_, outcome) => (outcome.as_str(), None),
            };
            // A call that opens the session: its `begin` could not name it.
            let origin = match call.opens_session {
                true => Origin { session: self.digest(), ..Origin::default() }.into(),
                false => OriginSource::Elsewhere,
            };
            let entry = Entry {
                at: Some(now),
                call: Some(call.call),
                origin,
                outcome: Some(name),
                status,
                code,
                duration: Some(record.duration),
                bytes_out: is_one.then_some(record.bytes_out),
                ..Entry::default()
            };
            self.recorder.end(&self.tenant, &entry);
        }
    }

    fn finish_without_calls(&self, record: &ExchangeRecord, status: Option<u16>) {
        // To a GET, 405 says that there is no such stream.
        let is_refused = record.outcome == Outcome::Refused && record.status != 405;
        if !is_refused || self.is_refusal_recorded {
            return;
        }
        let duration: Option<Duration> = Some(record.duration);
        let request = self.posted.clone().and_then(|posted| Message::parse(posted).ok());
        let about = match &request {
            Some(Message::Request(request)) => About::of(request),
            _ => About::default(),
        };
        let entry = Entry {
            method: record.method.as_ref().map(|method| method.as_str()),
            about: about.subject.as_ref().map(|(kind, name)| (*kind, &**name)),
            is_ambiguous: about.is_ambiguous,
            reason: self.refusal.map(|(reason, _)| reason),
            status,
            code: record.code,
            duration,
            bytes_in: Some(record.bytes_in),
            ..self.entry()
        };
        match self.refusal {
            Some((_, true)) => self.recorder.sign_in_failed(&self.tenant, &entry),
            Some((_, false)) | None => self.recorder.refused(&self.tenant, &entry),
        }
    }
}
