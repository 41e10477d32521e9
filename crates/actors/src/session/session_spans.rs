//! The spans of a session: of requests in both directions over the link to its server.

use conversation::Event;
use protocol::Message;
use telemetry::Traces;

use super::server_calls::ServerCalls;
use super::server_request_spans::ServerRequestSpans;

/// The spans of the requests that are open on the link, as far as they are traced.
#[derive(Default)]
pub(super) struct SessionSpans {
    calls: ServerCalls,
    server_requests: ServerRequestSpans,
}

impl SessionSpans {
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
