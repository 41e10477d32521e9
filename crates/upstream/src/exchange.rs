//! One HTTP request to an upstream server, and what is received for it.

use std::fmt;
use std::time::Duration;

use budget::Held;
use bytes::Bytes;
use hyper::header::HeaderValue;
use protocol::{Message, Mirrored, Response, UpstreamTokens};

use crate::machine::ExchangeId;
use crate::url::Url;
use crate::{CredentialProblem, Failure};

/// Longest session id and longest event id that are kept, in bytes.
const TEXT_BYTES_MAX: usize = 4_096;

/// A text that can be the value of a header, such as a session id.
#[derive(Clone, PartialEq, Eq)]
pub struct HeaderText(HeaderValue);

impl HeaderText {
    /// A text of visible ASCII characters, as session ids have; `None` for any other, or if it is too
    /// long.
    pub fn visible(text: &[u8]) -> Option<Self> {
        let fits = !text.is_empty() && text.iter().all(|byte| matches!(byte, 0x21..=0x7E));
        if fits { Self::parse(text) } else { None }
    }

    /// Any text that a header can have; `None` for any other, or if it is too long.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.is_empty() || text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let mut value = HeaderValue::from_bytes(text).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }

    /// The text, if it is one of UTF-8.
    pub(crate) fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.0.as_bytes()).ok()
    }

    pub(crate) fn value(&self) -> HeaderValue {
        self.0.clone()
    }
}

/// Prints nothing of the text: who has a session id may use the session.
impl fmt::Debug for HeaderText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeaderText({} bytes)", self.0.len())
    }
}

/// What is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// A JSON-RPC request, which is answered by JSON or by a stream.
    Request(Bytes),
    /// A notification or a response, which is only accepted.
    Note(Bytes),
    /// A GET for messages that belong to no request; with the last event id, if it is opened again.
    Listen(Option<HeaderText>),
    /// A GET for the rest of a request's stream, after this event.
    Resume(HeaderText),
    /// The end of the session.
    Delete,
}

/// One HTTP request.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// What is sent.
    pub verb: Verb,
    /// The session id.
    pub session: Option<HeaderText>,
    /// The negotiated revision.
    pub revision: Option<HeaderText>,
    /// The headers that mirror the message, in revisions that have them.
    pub mirrored: Option<Box<Mirrored>>,
    /// How long to wait before it is sent.
    pub after: Duration,
    /// Where it is sent, if not to the URL of the settings.
    pub to: Option<Url>,
    /// The tokens of the client for upstream servers, if these need one of each user.
    pub tokens: Option<UpstreamTokens>,
    /// The exchange that has to be sent before it. If that one ends without being sent, it is not sent either.
    pub behind: Option<ExchangeId>,
}

/// What is received for a request. The last event is one of those after `Event`.
#[derive(Clone, Debug, PartialEq)]
pub enum ExchangeEvent {
    /// The head of a successful response, with the session id that it has.
    Opened(Option<HeaderText>),
    /// The URL for messages, which a server of the older HTTP+SSE sends first.
    Endpoint(Url),
    /// A body of JSON, or an event of a stream.
    Event {
        /// The messages in it.
        messages: Vec<Message>,
        /// The event's id.
        id: Option<HeaderText>,
        /// How long to wait before the stream is opened again, in milliseconds.
        retry_ms: Option<u64>,
    },
    /// The response ended.
    Ended,
    /// The message was accepted, without an answer.
    Accepted,
    /// The server does not know the session (404).
    SessionGone,
    /// Any other status that is no success.
    Refused {
        /// The status.
        status: u16,
        /// The JSON-RPC error in the body.
        error: Option<Response>,
    },
    /// It failed.
    Failed(Failure),
}

impl ExchangeEvent {
    /// Whether the server, or the authorization server, does not accept the node's credential, or there is none.
    pub fn refuses_credential(&self) -> bool {
        use CredentialProblem::{NoToken, Refused, Rejected};
        match self {
            Self::Refused { status, .. } => *status == 401,
            Self::Failed(Failure::Credential(problem)) => {
                matches!(problem, Refused(_) | Rejected | NoToken)
            }
            _ => false,
        }
    }

    /// The bytes of its messages.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Event { messages, .. } => {
                messages.iter().map(|message| message.raw().len()).sum()
            }
            _ => 0,
        }
    }

    /// Whether no event follows.
    pub fn is_last(&self) -> bool {
        !matches!(self, Self::Opened(_) | Self::Endpoint(_) | Self::Event { .. })
    }
}

/// An event of an exchange on its way to the session.
#[derive(Debug)]
pub struct SentEvent {
    /// The exchange.
    pub exchange: ExchangeId,
    /// The event.
    pub event: ExchangeEvent,
    /// What the tenant is charged for it, until the session has it. `None` if it is not charged.
    pub held: Option<Held>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_no_header_can_have_is_none() {
        assert!(HeaderText::visible(b"a-1").is_some());
        for text in [&b""[..], b"a b", b"a\n", "\u{e9}".as_bytes(), &[b'x'; 4_097]] {
            assert_eq!(HeaderText::visible(text), None);
        }
        assert!(HeaderText::parse("\u{e9} 1".as_bytes()).is_some());
        assert_eq!(HeaderText::parse(b"a\r\nx: y"), None);
    }
}
