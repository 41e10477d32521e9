//! Messages that arrive while the node may not act for the session.

use conversation::{Event, Millis};
use thin_vec::ThinVec;

use crate::reply::Sink;

/// How long a message waits for the node to own the session again, in milliseconds. Then its
/// routed request looks for an owner; it is held no longer than any other request.
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
    /// Takes a message, and returns when it expires. Where `max` messages wait already, its sink
    /// comes back and nothing is kept.
    pub(super) fn push(
        &mut self,
        event: Event,
        sink: Option<Sink>,
        now: Millis,
        max: usize,
    ) -> Result<Millis, Option<Sink>> {
        if self.0.len() >= max {
            return Err(sink);
        }
        let expires = now.plus(WAIT_MS);
        self.0.push(DeferredMessage { event, sink, expires });
        Ok(expires)
    }

    /// The oldest message.
    pub(super) fn take_first(&mut self) -> Option<(Event, Option<Sink>)> {
        let DeferredMessage { event, sink, .. } = (!self.0.is_empty()).then(|| self.0.remove(0))?;
        Some((event, sink))
    }

    /// Drops the messages that have waited for too long. A sink that is dropped unread tells its
    /// routed request that nothing was done. A message without a sink stays.
    pub(super) fn expire(&mut self, now: Millis) {
        self.0.retain(|message| message.sink.is_none() || message.expires > now);
    }

    /// When the oldest message with a sink expires.
    pub(super) fn next_expiry(&self) -> Option<Millis> {
        self.0.iter().find(|message| message.sink.is_some()).map(|message| message.expires)
    }

    /// The sinks of all messages, which are dropped.
    pub(super) fn take_sinks(&mut self) -> impl Iterator<Item = Sink> + use<> {
        std::mem::take(&mut self.0).into_iter().filter_map(|message| message.sink)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives back the room that an idle session does not need.
    pub(super) fn shrink(&mut self) {
        if self.0.is_empty() {
            self.0 = ThinVec::new();
        }
    }
}
