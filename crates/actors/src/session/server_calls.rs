//! The spans of the requests that a session's server has and that are traced. A session without such a
//! request has nothing here.

use conversation::Event;
use protocol::{
    Message, Method, Notification, Request, RequestId, Response, TraceParent, glance, payload,
};
use telemetry::{Before, Side, Span, SpanRef, Traces};
use thin_vec::ThinVec;

use crate::spans::{begin_request_span, position};

/// Most requests of a session with a span. A further one has none; the server gets the span before it
/// as its parent.
const CALLS_MAX: usize = 64;

/// The spans of requests that the server has.
#[derive(Default)]
pub(super) struct ServerCalls(ThinVec<(RequestId, Span)>);

impl ServerCalls {
    /// A message as the server gets it. A request that is traced carries the span of its call, which
    /// begins here.
    pub(super) fn begin(&mut self, traces: &Traces, message: Message) -> Message {
        match message {
            Message::Request(request) if request.trace.is_some() => {
                Message::Request(self.begin_call(traces, request))
            }
            Message::Notification(notification) if !self.0.is_empty() => {
                self.note_cancelled(&notification);
                Message::Notification(notification)
            }
            other => other,
        }
    }

    fn begin_call(&mut self, traces: &Traces, request: Request) -> Request {
        let Some(trace) = &request.trace else { return request };
        let before = Before { parent: Some(position(trace)), ..Before::default() };
        let has_room = self.0.len() < CALLS_MAX;
        let span = has_room.then(|| begin_request_span(traces, Side::Client, &request, before));
        let Some(span) = span.flatten() else {
            return request.with_trace_parent(&trace.parent());
        };
        let at = span.at();
        let parent = TraceParent { trace: at.trace.0, span: at.span, is_sampled: true };
        let call = request.with_trace_parent(&parent);
        self.0.push((request.id, span));
        call
    }

    /// Ends the spans that an event is the end of.
    pub(super) fn note_event(&mut self, event: &Event) {
        if self.0.is_empty() {
            return;
        }
        match event {
            Event::ServerMessage { message: Message::Response(response), .. } => {
                let Some(mut span) = response.id.as_ref().and_then(|id| self.take(id)) else {
                    return;
                };
                fail_of_response(&mut span, response);
            }
            Event::Unsent { message: Message::Request(request) } => {
                self.take(&request.id).iter_mut().for_each(|span| span.fail("server_busy"));
            }
            Event::LinkDown { .. } => self.close(),
            _ => {}
        }
    }

    /// The link to the server is closed: no response follows.
    pub(super) fn close(&mut self) {
        for (_, mut span) in std::mem::take(&mut self.0) {
            span.fail("server_gone");
        }
    }

    /// The span of the call of this request.
    pub(super) fn span_of(&self, id: &RequestId) -> Option<SpanRef> {
        self.0.iter().find(|(of, _)| of == id).map(|(_, span)| span.at())
    }

    /// The span of each call, oldest first as long as none has ended.
    pub(super) fn spans(&self) -> impl Iterator<Item = SpanRef> {
        self.0.iter().map(|(_, span)| span.at())
    }

    fn note_cancelled(&mut self, notification: &Notification) {
        if notification.method != Method::Cancelled {
            return;
        }
        let id = notification.params().and_then(|params| payload::cancelled_request_id(&params));
        id.and_then(|id| self.take(&id)).iter_mut().for_each(|span| span.fail("cancelled"));
    }

    fn take(&mut self, id: &RequestId) -> Option<Span> {
        let at = self.0.iter().position(|(of, _)| of == id)?;
        Some(self.0.swap_remove(at).1)
    }
}

/// Marks the span of a request as failed if its response is an error.
pub(super) fn fail_of_response(span: &mut Span, response: &Response) {
    let raw = response.raw();
    match glance::kind_of(raw) {
        Some(glance::Kind::Error) => fail_with_code(span, glance::error_code(raw)),
        _ if glance::is_tool_error(raw) => span.fail("tool_error"),
        _ => {}
    }
}

/// Marks a span as failed with the code of a JSON-RPC error.
fn fail_with_code(span: &mut Span, code: Option<i32>) {
    let code = code.map_or_else(|| "_OTHER".to_owned(), |code| code.to_string());
    span.set("rpc.response.status_code", code.clone());
    span.fail(code);
}
