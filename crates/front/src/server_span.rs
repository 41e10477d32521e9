//! The span of a message at the node with its client's connection, by OpenTelemetry's conventions for
//! MCP. Most messages are not traced, and have none of this.

use std::time::Instant;

use actix_http::header::HeaderMap;
use actors::{begin_notification_span, begin_request_span};
use protocol::{Body as Posted, Message, RequestId, TraceContext, TraceParent, is_trace_state};
use telemetry::{Before, ExchangeRecord, Outcome, Side, Span, SpanRef, TraceId, Traces};

use crate::audit_reading::final_response;
use crate::unanswered::{Handling, Unanswered};

/// The spans of an exchange whose messages may be traced.
#[derive(Debug)]
pub(crate) struct ServerSpan {
    traces: Traces,
    /// Whether chance took the message, or all members of the batch.
    is_taken: bool,
    spans: Spans,
}

#[derive(Debug, Default)]
enum Spans {
    #[default]
    None,
    /// That of the only message: it ends with the exchange.
    One(Span),
    /// Those of the members of a batch.
    Members {
        /// Each ends with its response.
        requests: Unanswered<Span>,
        /// They end with the exchange.
        notifications: Vec<Span>,
    },
}

/// A request of which the span began.
#[derive(Debug)]
pub(crate) struct TracedRequest {
    pub(crate) id: RequestId,
    pub(crate) handling: Handling,
    pub(crate) span: Span,
}

impl ServerSpan {
    /// What a new exchange needs to be traced; `None` if it is not.
    pub(crate) fn of_exchange(traces: &Traces) -> Option<Box<Self>> {
        let is_taken = traces.takes_by_chance();
        (is_taken || traces.trusts_sampled())
            .then(|| Box::new(Self { traces: traces.clone(), is_taken, spans: Spans::None }))
    }

    /// Begins the span of a message, or of each member of a batch, and puts the message into it. Its parent
    /// is the `traceparent` of the message, else that of the HTTP request; if there are both, the latter is
    /// a link.
    pub(crate) fn begin(
        &mut self,
        body: &mut Posted,
        headers: Option<&HeaderMap>,
        began: Instant,
        record: &mut ExchangeRecord,
    ) {
        let mut first = None;
        self.spans = match body {
            Posted::One(message) => {
                let span = self.begin_message(message, headers, began);
                first = span.as_ref().map(Span::at);
                span.map_or(Spans::None, Spans::One)
            }
            Posted::Batch(members) => {
                let (mut requests, mut notifications) = (Unanswered::default(), Vec::new());
                for member in members.iter_mut().flatten() {
                    let span = self.begin_message(member, headers, began);
                    first = first.or(span.as_ref().map(Span::at));
                    match member {
                        Message::Request(request) => {
                            requests.add(&request.id, Handling::of(request), span);
                        }
                        _ => notifications.extend(span),
                    }
                    requests.note_cancelled(member);
                }
                Spans::Members { requests, notifications }
            }
        };
        record.trace = first;
    }

    /// Begins the span of one message.
    fn begin_message(
        &self,
        message: &mut Message,
        headers: Option<&HeaderMap>,
        began: Instant,
    ) -> Option<Span> {
        let of_message = match &*message {
            Message::Request(request) => request.trace_parent(),
            Message::Notification(notification) => notification.trace_parent(),
            Message::Response(_) => return None,
        };
        let of_http = headers.and_then(trace_parent_of);
        let (parent, state, link) = match (&of_message, of_http) {
            (Some((parent, state)), link) => (Some(*parent), state.as_deref(), link),
            (None, Some(parent)) => (Some(parent), headers.and_then(trace_state_of), None),
            (None, None) => (None, None, None),
        };
        let is_traced = match parent {
            Some(parent) if self.traces.trusts_sampled() => parent.is_sampled,
            _ => self.is_taken,
        };
        if !is_traced {
            return None;
        }
        let before = Before {
            parent: parent.map(position),
            state,
            link: link.map(position),
            earlier: began.elapsed(),
        };
        let span = match &*message {
            Message::Request(request) => {
                begin_request_span(&self.traces, Side::Server, request, before)
            }
            Message::Notification(notification) => {
                begin_notification_span(&self.traces, notification, before)
            }
            Message::Response(_) => None,
        }?;
        let at = span.at();
        drop(of_message);
        if let Message::Request(request) = message {
            let trace = TraceContext { trace: at.trace.0, span: at.span, origin: at.span };
            request.trace = Some(Box::new(trace));
        }
        Some(span)
    }

    /// Moves the span of one member of a batch to an exchange of its own.
    pub(crate) fn split(&mut self, request: &RequestId) -> Option<Box<Self>> {
        let Spans::Members { requests, .. } = &mut self.spans else { return None };
        let span = requests.take_first(request)?;
        let (traces, is_taken) = (self.traces.clone(), self.is_taken);
        Some(Box::new(Self { traces, is_taken, spans: Spans::One(span) }))
    }

    /// Takes the spans of the requests of this body: another part ends them.
    pub(crate) fn take_requests(&mut self, body: &Posted) -> Vec<TracedRequest> {
        match (std::mem::take(&mut self.spans), body) {
            (Spans::One(span), Posted::One(Message::Request(request))) => {
                let handling = Handling::of(request);
                vec![TracedRequest { id: request.id.clone(), handling, span }]
            }
            (Spans::Members { requests, notifications }, _) => {
                let all = requests.into_all();
                let all = all.map(|(id, handling, span)| TracedRequest { id, handling, span });
                let taken = all.collect();
                self.spans = Spans::Members { requests: Unanswered::default(), notifications };
                taken
            }
            (other, _) => {
                self.spans = other;
                Vec::new()
            }
        }
    }

    /// Takes requests back whose spans no other part ends.
    pub(crate) fn take_back(&mut self, taken: Vec<TracedRequest>) {
        let (mut requests, mut notifications) = (Unanswered::default(), Vec::new());
        for TracedRequest { id, handling, span } in taken {
            requests.add(&id, handling, Some(span));
        }
        if let Spans::Members { notifications: others, .. } = &mut self.spans {
            notifications = std::mem::take(others);
        }
        self.spans = Spans::Members { requests, notifications };
    }

    /// Ends the span of the member of a batch that a message of the response answers.
    pub(crate) fn answered(&mut self, message: &[u8], record: &ExchangeRecord) {
        let Spans::Members { requests, .. } = &mut self.spans else { return };
        if requests.ends_nothing() {
            return;
        }
        let Some((id, outcome, code)) = final_response(message) else { return };
        if let Some(span) = requests.take_answered(&id, code) {
            end(span, record, outcome, code);
        }
    }

    /// Notes that all messages of the response were noted.
    pub(crate) fn answered_completely(&mut self) {
        if let Spans::Members { requests, .. } = &mut self.spans {
            requests.set_complete();
        }
    }

    /// Ends each span with what is known of the exchange at its end.
    pub(crate) fn end(self, record: &ExchangeRecord) {
        match self.spans {
            Spans::None => {}
            Spans::One(span) => end(span, record, record.outcome, record.code),
            Spans::Members { requests, notifications } => {
                for (span, outcome) in requests.at_end(record.outcome) {
                    // Otherwise the code is of another member.
                    let code = record.code.filter(|_| outcome == record.outcome);
                    end(span, record, outcome, code);
                }
                // A notification has no outcome of its own, and that of the batch is of others.
                let (outcome, code) = match record.outcome {
                    Outcome::Result | Outcome::ToolError | Outcome::Error => {
                        (Outcome::Accepted, None)
                    }
                    outcome => (outcome, record.code),
                };
                notifications.into_iter().for_each(|span| end(span, record, outcome, code));
            }
        }
    }
}

/// Ends the span of a message with what is known of its exchange.
pub(crate) fn end(mut span: Span, record: &ExchangeRecord, outcome: Outcome, code: Option<i32>) {
    if record.endpoint == "stdio" {
        span.set("network.transport", "pipe");
    } else {
        span.set("network.transport", "tcp");
        span.set("network.protocol.name", "http");
    }
    if let Some(revision) = record.revision {
        span.set("mcp.protocol.version", revision);
    }
    if let Some(tenant) = &record.tenant {
        span.set("roundhouse.tenant", tenant.to_string());
    }
    if let Some(session) = &record.session {
        span.set("roundhouse.session", session.as_str().to_owned());
    }
    span.set("roundhouse.node", record.node.to_string());
    span.set("roundhouse.owner", record.owner.as_ref().unwrap_or(&record.node).to_string());
    span.set("roundhouse.outcome", outcome.as_str());
    if let Some(code) = code {
        span.set("rpc.response.status_code", code.to_string());
    }
    match (outcome, code) {
        (Outcome::ToolError, _) => span.fail("tool_error"),
        (Outcome::Error | Outcome::Refused, Some(code)) => span.fail(code.to_string()),
        (Outcome::Refused, None) => span.fail(record.status.to_string()),
        (Outcome::Error, None) => span.fail("_OTHER"),
        _ => {}
    }
}

fn position(parent: TraceParent) -> SpanRef {
    SpanRef { trace: TraceId(parent.trace), span: parent.span }
}

/// The `traceparent` of an HTTP request; none if there are several.
fn trace_parent_of(headers: &HeaderMap) -> Option<TraceParent> {
    let mut all = headers.get_all("traceparent");
    let only = all.next().filter(|_| all.next().is_none())?;
    TraceParent::parse(only.to_str().ok()?)
}

/// The `tracestate` of an HTTP request; none if it is malformed, or if there are several.
fn trace_state_of(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all("tracestate");
    let only = all.next().filter(|_| all.next().is_none())?;
    only.to_str().ok().filter(|state| is_trace_state(state))
}
