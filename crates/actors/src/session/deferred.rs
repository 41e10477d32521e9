//! Messages that arrive while the node may not act for the session.

use conversation::{Event, Millis};
use thin_vec::ThinVec;

use crate::reply::Sink;

/// How long a message waits until the node owns the session again, in milliseconds. Then its routed
/// request locates the owner; it is held no longer than any other request.
const WAIT_MS: u64 = 500;

/// Messages that arrived while the node did not own the session, oldest first.
#[derive(Default)]
pub(super) struct DeferredMessages(ThinVec<DeferredMessage>);

struct DeferredMessage {
    event: Event,
    sink: Option<Sink>,
    expires: Millis,
}

impl DeferredMessages {
    /// Adds a message and returns its expiry. If `max` messages wait already, a message with a sink
    /// is dropped and its sink is returned. A message without one is always kept: it is a stop
    /// request, and each of those is sent once.
    pub(super) fn push(
        &mut self,
        event: Event,
        sink: Option<Sink>,
        now: Millis,
        max: usize,
    ) -> Result<Millis, Sink> {
        let sink = match sink {
            Some(sink) if self.0.len() >= max => return Err(sink),
            sink => sink,
        };
        let expires = now.plus(WAIT_MS);
        self.0.push(DeferredMessage { event, sink, expires });
        Ok(expires)
    }

    /// The oldest message.
    pub(super) fn take_first(&mut self) -> Option<(Event, Option<Sink>)> {
        let DeferredMessage { event, sink, .. } = (!self.0.is_empty()).then(|| self.0.remove(0))?;
        Some((event, sink))
    }

    /// Drops the expired messages. A dropped sink notifies its routed request that the request was
    /// not started. A message without a sink stays.
    pub(super) fn expire(&mut self, now: Millis) {
        self.0.retain(|message| message.sink.is_none() || message.expires > now);
    }

    /// The expiry of the oldest message with a sink.
    pub(super) fn next_expiry(&self) -> Option<Millis> {
        self.0.iter().find(|message| message.sink.is_some()).map(|message| message.expires)
    }

    /// Takes the sinks of all messages and drops the messages.
    pub(super) fn take_sinks(&mut self) -> impl Iterator<Item = Sink> + use<> {
        std::mem::take(&mut self.0).into_iter().filter_map(|message| message.sink)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Releases memory that an idle session does not need.
    pub(super) fn shrink(&mut self) {
        if self.0.is_empty() {
            self.0 = ThinVec::new();
        }
    }
}
