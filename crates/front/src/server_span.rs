//! The span of a message at the node with its client's connection, by OpenTelemetry's conventions for
//! MCP. Most messages are not traced, and have none of this.

use std::time::Instant;

use actix_http::header::HeaderMap;
use actors::{begin_notification_span, begin_request_span};
use protocol::{Body as Posted, Message, TraceContext, TraceParent, is_trace_state};
use telemetry::{Before, ExchangeRecord, Outcome, Side, Span, SpanRef, TraceId, Traces};

/// The span of an exchange whose message may be traced.
#[derive(Debug)]
pub(crate) struct ServerSpan {
    traces: Traces,
    /// Whether chance took the message.
    is_taken: bool,
    span: Option<Span>,
}

impl ServerSpan {
    /// What a new exchange needs to be traced; `None` if it is not.
    pub(crate) fn of_exchange(traces: &Traces) -> Option<Box<Self>> {
        let is_taken = traces.takes_by_chance();
        (is_taken || traces.trusts_sampled())
            .then(|| Box::new(Self { traces: traces.clone(), is_taken, span: None }))
    }

    /// Begins the span of a message, and puts the message into it. Its parent is the `traceparent` of the
    /// message, else that of the HTTP request; if there are both, the latter is a link.
    pub(crate) fn begin(
        &mut self,
        body: &mut Posted,
        headers: Option<&HeaderMap>,
        began: Instant,
        record: &mut ExchangeRecord,
    ) {
        let Posted::One(message) = body else { return };
        let of_message = match &*message {
            Message::Request(request) => request.trace_parent(),
            Message::Notification(notification) => notification.trace_parent(),
            Message::Response(_) => return,
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
            return;
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
        };
        let Some(span) = span else { return };
        let at = span.at();
        drop(of_message);
        if let Message::Request(request) = message {
            let trace = TraceContext { trace: at.trace.0, span: at.span, origin: at.span };
            request.trace = Some(Box::new(trace));
        }
        record.trace = Some(at.trace);
        self.span = Some(span);
    }

    /// Ends the span with what is known of the exchange at its end.
    pub(crate) fn end(self, record: &ExchangeRecord) {
        let Some(mut span) = self.span else { return };
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
        span.set("roundhouse.outcome", record.outcome.as_str());
        if let Some(code) = record.code {
            span.set("rpc.response.status_code", code.to_string());
        }
        match (record.outcome, record.code) {
            (Outcome::ToolError, _) => span.fail("tool_error"),
            (Outcome::Error | Outcome::Refused, Some(code)) => span.fail(code.to_string()),
            (Outcome::Refused, None) => span.fail(record.status.to_string()),
            (Outcome::Error, None) => span.fail("_OTHER"),
            _ => {}
        }
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
