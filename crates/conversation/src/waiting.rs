//! Messages of the server that wait until the client opens a standalone stream.
//!
//! They are in no log: no client has received them, and they are lost with this owner.

use bytes::Bytes;
use protocol::Position;
use thin_vec::ThinVec;

use crate::Fact;
use crate::entry::ServerRequestId;
use crate::step_context::StepContext;

/// The messages that wait, oldest first; bounded by `waiting_max` and `waiting_bytes_max`.
#[derive(Default)]
pub(crate) struct WaitingMessages(ThinVec<Waiting>);

/// A message that waits for a standalone stream.
pub(crate) struct Waiting {
    pub(crate) data: Bytes,
    /// The server request that it is.
    pub(crate) server_request: Option<ServerRequestId>,
    /// May it be sent before the client sent `initialized` (RPC-11)?
    pub(crate) early: bool,
    /// How far the server's stream was read with it, if that belongs to no request.
    pub(crate) position: Option<Box<Position>>,
}

impl WaitingMessages {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes of the messages.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|waiting| waiting.data.len()).sum()
    }

    /// Keeps a message until there is a stream for it; at a limit the oldest are dropped. A message
    /// that exceeds the limit of bytes alone is kept alone.
    pub(crate) fn push_message(&mut self, context: &mut StepContext<'_>, message: Waiting) {
        let (most, bytes_max) = (context.limits().waiting_max, context.limits().waiting_bytes_max);
        let mut bytes = self.bytes() + message.data.len();
        while !self.0.is_empty() && (self.0.len() >= most || bytes > bytes_max) {
            bytes -= self.0.remove(0).data.len();
            context.count_fact(Fact::Dropped);
        }
        self.0.push(message);
    }

    /// Where the payload of the newest message is: tells two messages that wait apart.
    pub(crate) fn newest(&self) -> Option<*const u8> {
        self.0.last().map(|newest| newest.data.as_ptr())
    }

    /// Whether a message waits with which a server's stream was read.
    pub(crate) fn has_position(&self) -> bool {
        self.0.iter().any(|waiting| waiting.position.is_some())
    }

    /// The server's stream was read so far with the newest message.
    pub(crate) fn note_position(&mut self, position: Box<Position>) {
        if let Some(newest) = self.0.last_mut() {
            newest.position = Some(position);
        }
    }

    /// Takes all messages, to send some of them and put the others back.
    pub(crate) fn take_all(&mut self) -> ThinVec<Waiting> {
        std::mem::take(&mut self.0)
    }

    /// Puts back a message that still has to wait.
    pub(crate) fn put_message_back(&mut self, message: Waiting) {
        self.0.push(message);
    }

    /// Takes the messages that match, and keeps the order of the others.
    pub(crate) fn take_matching(&mut self, matches: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let (matching, others): (Vec<_>, Vec<_>) = self.take_all().into_iter().partition(matches);
        self.0 = others.into();
        matching
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_context::step_of_part;
    use crate::{Effect, Limits, Millis};

    #[test]
    fn at_the_bound_the_oldest_message_is_dropped_and_counted() {
        let limits = Limits { waiting_max: 1, ..Limits::default() };
        let mut waiting = WaitingMessages::default();
        let effects = step_of_part(limits, Millis(0), |context| {
            for data in ["1", "2"] {
                let data = Bytes::from_static(data.as_bytes());
                let message = Waiting { data, server_request: None, early: false, position: None };
                waiting.push_message(context, message);
            }
        });
        assert_eq!(effects, [Effect::Count(Fact::Dropped)]);
        assert_eq!(waiting.take_all()[0].data, "2");
    }

    #[test]
    fn at_the_bound_of_bytes_the_oldest_messages_are_dropped_and_a_larger_one_is_kept_alone() {
        let limits = Limits { waiting_bytes_max: 4, ..Limits::default() };
        let mut waiting = WaitingMessages::default();
        let mut kept_after = |data: &'static str| {
            step_of_part(limits.clone(), Millis(0), |context| {
                let data = Bytes::from_static(data.as_bytes());
                let message = Waiting { data, server_request: None, early: false, position: None };
                waiting.push_message(context, message);
            });
            (waiting.len(), waiting.bytes())
        };
        assert_eq!(kept_after("12"), (1, 2));
        assert_eq!(kept_after("12"), (2, 4));
        assert_eq!(kept_after("123"), (1, 3));
        assert_eq!(kept_after("12345"), (1, 5));
        assert_eq!(kept_after("1"), (1, 1));
    }
}
