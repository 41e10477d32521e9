//! The spans of the requests that the tenant's server sends to the client, for example for sampling: those
//! that are traced. A session without such a request has nothing here.

use conversation::Event;
use protocol::{Message, Method, Request, RequestId, Response, TraceParent, payload};
use telemetry::{Before, Side, Span, SpanRef, TraceId, Traces};
use thin_vec::ThinVec;

use super::server_calls::{ServerCalls, fail_of_response};
use crate::spans::begin_request_span;

/// Most requests of a server with a span. A further one has none.
const REQUESTS_MAX: usize = 64;

/// The spans of requests that the server waits for, by the ids that it gave them.
#[derive(Default)]
pub(super) struct ServerRequestSpans(ThinVec<(RequestId, Span)>);

/// What a request of the server is known to be for.
enum Reason {
    /// A request of the client, whose call at the server has this span.
    Traced(SpanRef),
    /// A request of the client that is not traced.
    Untraced,
    /// No request of the client, or one of several.
    Unknown,
}

impl ServerRequestSpans {
    /// An event of the link as the session gets it. A request of the server that is traced carries its
    /// span, which begins here. `exchanges` counts the requests of the client in flight.
    pub(super) fn begin(
        &mut self,
        traces: &Traces,
        calls: &ServerCalls,
        exchanges: usize,
        event: Event,
    ) -> Event {
        match event {
            // The session answers a ping itself.
            Event::ServerMessage { message: Message::Request(request), about, position }
                if request.method != Method::Ping && traces.is_on() =>
            {
                let reason = reason(calls, exchanges, &request, about.as_ref());
                let request = self.begin_request(traces, reason, request);
                Event::ServerMessage { message: Message::Request(request), about, position }
            }
            other => other,
        }
    }

    fn begin_request(&mut self, traces: &Traces, reason: Reason, request: Request) -> Request {
        let own = request.trace_parent().map(|(parent, _)| position(parent));
        let (parent, link) = match (reason, own) {
            (Reason::Untraced, _) => return request,
            (Reason::Unknown, _) if !traces.takes_by_chance() => return request,
            (Reason::Unknown, own) => (own, None),
            // The server goes on in the trace that it was given.
            (Reason::Traced(call), Some(own)) if own.trace == call.trace => (Some(own), None),
            (Reason::Traced(call), own) => (Some(call), own),
        };
        if self.0.len() >= REQUESTS_MAX {
            return request;
        }
        let before = Before { parent, link, ..Before::default() };
        let Some(span) = begin_request_span(traces, Side::Client, &request, before) else {
            return request;
        };
        let at = span.at();
        let parent = TraceParent { trace: at.trace.0, span: at.span, is_sampled: true };
        let sent = request.with_trace_parent(&parent);
        self.0.push((request.id, span));
        sent
    }

    /// Ends the span of the request that a message to the server answers.
    pub(super) fn note_sent(&mut self, message: &Message) {
        if let Message::Response(response) = message
            && !self.0.is_empty()
        {
            self.end_answered(response);
        }
    }

    fn end_answered(&mut self, response: &Response) {
        if let Some(mut span) = response.id.as_ref().and_then(|id| self.take(id)) {
            fail_of_response(&mut span, response);
        }
    }

    /// Ends the spans that an event is the end of.
    pub(super) fn note_event(&mut self, event: &Event) {
        if self.0.is_empty() {
            return;
        }
        match event {
            Event::ServerMessage { message: Message::Notification(notification), .. }
                if notification.method == Method::Cancelled =>
            {
                let params = notification.params();
                let id = params.and_then(|params| payload::cancelled_request_id(&params));
                id.and_then(|id| self.take(&id)).iter_mut().for_each(|span| span.fail("cancelled"));
            }
            Event::LinkDown { .. } => self.close(),
            _ => {}
        }
    }

    /// The link to the server is closed: it waits for nothing any more.
    pub(super) fn close(&mut self) {
        for (_, mut span) in std::mem::take(&mut self.0) {
            span.fail("server_gone");
        }
    }

    fn take(&mut self, id: &RequestId) -> Option<Span> {
        let at = self.0.iter().position(|(of, _)| of == id)?;
        Some(self.0.swap_remove(at).1)
    }
}

/// What a request of the server is for: what the link knows of it, else the call in whose trace the server
/// says that it is, else the only request in flight.
fn reason(
    calls: &ServerCalls,
    exchanges: usize,
    request: &Request,
    about: Option<&RequestId>,
) -> Reason {
    if let Some(about) = about {
        return calls.span_of(about).map_or(Reason::Untraced, Reason::Traced);
    }
    let own = request.trace_parent().map(|(parent, _)| position(parent));
    let named = own.and_then(|own| calls.spans().find(|call| call.trace == own.trace));
    match (named, exchanges) {
        (Some(call), _) => Reason::Traced(call),
        (None, 1) => calls.spans().next().map_or(Reason::Untraced, Reason::Traced),
        (None, _) => Reason::Unknown,
    }
}

fn position(parent: TraceParent) -> SpanRef {
    SpanRef { trace: TraceId(parent.trace), span: parent.span }
}
