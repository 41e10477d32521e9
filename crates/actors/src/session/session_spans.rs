//! The spans of a session: of requests in both directions over the link to its server.

use conversation::Event;
use protocol::{Body, Message};
use telemetry::{SpanRef, Traces};

use super::server_calls::ServerCalls;
use super::server_request_spans::ServerRequestSpans;
use crate::spans::position;

/// The spans of the requests that are open on the link, as far as they are traced.
#[derive(Default)]
pub(super) struct SessionSpans {
    calls: ServerCalls,
    server_requests: ServerRequestSpans,
}

impl SessionSpans {
    /// The span in which an event is handled, if its message is traced.
    pub(super) fn place_of(&self, traces: &Traces, event: &Event) -> Option<SpanRef> {
        if !traces.is_on() {
            return None;
        }
        match event {
            Event::Posted { body, .. } => place_of_body(body),
            Event::ServerMessage { message: Message::Response(response), .. } => {
                self.calls.span_of(response.id.as_ref()?)
            }
            _ => None,
        }
    }

    /// An event as the session gets it: a request of the server that is traced carries its span.
    /// `exchanges` counts the requests of the client in flight.
    pub(super) fn receive(&mut self, traces: &Traces, exchanges: usize, event: Event) -> Event {
        let event = self.server_requests.begin(traces, &self.calls, exchanges, event);
        self.calls.note_event(&event);
        self.server_requests.note_event(&event);
        event
    }

    /// A message as the server gets it: a request that is traced carries the span of its call.
    pub(super) fn send(&mut self, traces: &Traces, message: Message) -> Message {
        self.server_requests.note_sent(&message);
        self.calls.begin(traces, message)
    }

    /// The link to the server is closed.
    pub(super) fn close(&mut self) {
        self.calls.close();
        self.server_requests.close();
    }
}

/// The span of a POST: of a batch, that of the first request that is traced.
fn place_of_body(body: &Body) -> Option<SpanRef> {
    let trace = |message: &Message| match message {
        Message::Request(request) => request.trace.as_deref().map(position),
        _ => None,
    };
    match body {
        Body::One(message) => trace(message),
        Body::Batch(members) => members.iter().flatten().find_map(trace),
    }
}
