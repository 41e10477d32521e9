//! The messages of a child up to the second one that it receives. As long as there is only one, which
//! the child has not answered to a session, another session that sends the same one can have the
//! child. Decides only.

use bytes::Bytes;
use protocol::{Message, RequestId};

/// Most messages that are kept of what a child sends before it is in use, with a session or without;
/// beyond that a start is not handed over to another session.
const MESSAGES_MAX: usize = 64;

/// Most bytes of those messages.
const BYTES_MAX: usize = 1 << 20;

/// Who may have a child that has received a message: sessions of one client that send it, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) principal: [u8; 32],
    /// The message, on one line.
    pub(super) first: Bytes,
}

/// What a child has received and sent.
#[derive(Default)]
pub(super) struct Opening {
    first: Option<First>,
    /// What the child has sent, for a session that gets the child later.
    sent: Vec<Message>,
    sent_bytes: usize,
    /// Whether a bound was reached, so that a part of what the child sent is lost.
    is_incomplete: bool,
}

struct First {
    line: Bytes,
    /// `None` if the message asks for no answer.
    awaits: Option<RequestId>,
    is_answered: bool,
}

impl Opening {
    /// The child gets its first message.
    pub(super) fn receive_first(&mut self, message: &Message) {
        let awaits = match message {
            Message::Request(request) => Some(request.id.clone()),
            Message::Notification(_) | Message::Response(_) => None,
        };
        self.first = Some(First { line: message.line(), is_answered: awaits.is_none(), awaits });
    }

    /// The child has sent a message. Returns whether it is the answer to the first one.
    pub(super) fn note_sent(&mut self, message: &Message) -> bool {
        let bytes = message.raw().len();
        if self.sent.len() < MESSAGES_MAX && self.sent_bytes + bytes <= BYTES_MAX {
            self.sent_bytes += bytes;
            self.sent.push(message.clone());
        } else {
            self.is_incomplete = true;
        }
        let Some(first) = &mut self.first else { return false };
        let Message::Response(response) = message else { return false };
        let answers = !first.is_answered && response.id.is_some() && response.id == first.awaits;
        first.is_answered |= answers;
        answers
    }

    /// What the child has sent so far.
    pub(super) fn sent(&self) -> &[Message] {
        &self.sent
    }

    /// Has the child received nothing?
    pub(super) fn is_untouched(&self) -> bool {
        self.first.is_none()
    }

    /// Has the child received a message, and not answered it?
    pub(super) fn is_unanswered(&self) -> bool {
        self.first.as_ref().is_some_and(|first| !first.is_answered)
    }

    /// Which sessions may have the child, if the session of `principal` leaves it now; `None` if no
    /// other one may.
    pub(super) fn claim(&self, principal: Option<[u8; 32]>) -> Option<Claim> {
        let first = self.first.as_ref().filter(|first| !first.is_answered)?;
        (!self.is_incomplete).then_some(Claim { principal: principal?, first: first.line.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"i:1","method":"initialize","params":{}}"#;
    const ANSWER: &str = r#"{"jsonrpc":"2.0","id":"i:1","result":{}}"#;
    const NOTE: &str = r#"{"jsonrpc":"2.0","method":"note"}"#;
    const ADA: Option<[u8; 32]> = Some([1; 32]);

    fn message(text: &str) -> Message {
        Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn opened() -> Opening {
        let mut opening = Opening::default();
        opening.receive_first(&message(INITIALIZE));
        opening
    }

    #[test]
    fn a_child_is_claimed_by_the_same_client_with_the_same_message() {
        let mut opening = opened();
        assert!(!opening.note_sent(&message(NOTE)));
        let claim = opening.claim(ADA).unwrap();
        assert_eq!(claim, Claim { principal: [1; 32], first: INITIALIZE.into() });
        assert_eq!(opening.claim(None), None, "the client is not known");
        assert_eq!(opening.sent().len(), 1, "the next session gets the notification, too");
    }

    #[test]
    fn a_child_whose_answer_a_session_has_got_is_not_handed_over() {
        let mut opening = opened();
        assert!(opening.is_unanswered());
        assert!(opening.note_sent(&message(ANSWER)));
        assert!(!opening.is_unanswered());
        assert_eq!(opening.claim(ADA), None);
        assert!(!opening.note_sent(&message(ANSWER)), "a second answer is none");
    }

    #[test]
    fn a_child_that_sent_more_than_is_kept_is_not_handed_over() {
        let mut opening = opened();
        for _ in 0..=MESSAGES_MAX {
            opening.note_sent(&message(NOTE));
        }
        assert_eq!((opening.claim(ADA), opening.sent().len()), (None, MESSAGES_MAX));
    }

    #[test]
    fn a_child_that_received_nothing_is_untouched_whatever_it_sent() {
        let mut opening = Opening::default();
        opening.note_sent(&message(ANSWER));
        assert!(opening.is_untouched() && !opening.is_unanswered());
        opening.receive_first(&message(NOTE));
        assert!(!opening.is_untouched() && !opening.is_unanswered());
    }
}
