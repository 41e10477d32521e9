//! The span of a message at the node with its client's connection, by OpenTelemetry's conventions for
//! MCP. Most messages are not traced, and have none of this.

use std::time::Instant;

use actix_http::header::HeaderMap;
use actors::{begin_notification_span, begin_request_span};
use protocol::{Body as Posted, Message, RequestId, TraceContext, TraceParent, is_trace_state};
use telemetry::{Before, ExchangeRecord, Outcome, Side, Span, SpanRef, TraceId, Traces};

use crate::audit_reading::final_response;

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
    /// Those of the members of a batch. That of a request ends with its response.
    Members(Vec<(Option<RequestId>, Span)>),
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
        self.spans = match body {
            Posted::One(message) => {
                let span = self.begin_message(message, headers, began);
                span.map_or(Spans::None, Spans::One)
            }
            Posted::Batch(members) => {
                let members = members.iter_mut().flatten().filter_map(|member| {
                    let span = self.begin_message(member, headers, began)?;
                    let id = match member {
                        Message::Request(request) => Some(request.id.clone()),
                        _ => None,
                    };
                    Some((id, span))
                });
                Spans::Members(members.collect())
            }
        };
        let first = match &self.spans {
            Spans::None => None,
            Spans::One(span) => Some(span),
            Spans::Members(members) => members.first().map(|(_, span)| span),
        };
        record.trace = first.map(Span::at);
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
        let span = self.take_member(request)?;
        let (traces, is_taken) = (self.traces.clone(), self.is_taken);
        Some(Box::new(Self { traces, is_taken, spans: Spans::One(span) }))
    }

    /// Ends the span of the member of a batch that a message of the response answers.
    pub(crate) fn answered(&mut self, message: &[u8], record: &ExchangeRecord) {
        if !matches!(&self.spans, Spans::Members(members) if !members.is_empty()) {
            return;
        }
        let Some((id, outcome, code)) = final_response(message) else { return };
        if let Some(span) = self.take_member(&id) {
            end(span, record, outcome, code);
        }
    }

    fn take_member(&mut self, request: &RequestId) -> Option<Span> {
        let Spans::Members(members) = &mut self.spans else { return None };
        let at = members.iter().position(|(id, _)| id.as_ref() == Some(request))?;
        Some(members.swap_remove(at).1)
    }

    /// Ends each span with what is known of the exchange at its end.
    pub(crate) fn end(self, record: &ExchangeRecord) {
        match self.spans {
            Spans::None => {}
            Spans::One(span) => end(span, record, record.outcome, record.code),
            Spans::Members(members) => {
                for (id, span) in members {
                    match (id, record.outcome) {
                        // A notification has no outcome of its own, and that of the batch is of others.
                        (None, Outcome::Result | Outcome::ToolError | Outcome::Error) => {
                            end(span, record, Outcome::Accepted, None);
                        }
                        _ => end(span, record, record.outcome, record.code),
                    }
                }
            }
        }
    }
}

/// Ends the span of a message with what is known of its exchange.
fn end(mut span: Span, record: &ExchangeRecord, outcome: Outcome, code: Option<i32>) {
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
