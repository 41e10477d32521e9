//! What is known of one exchange with a client at its end: a line of the access log.
//!
//! A record never holds a payload, a token, a header or a whole session id. Text that a client chose
//! is a [`Label`], which is short and cannot disturb a log.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::SpanRef;

/// One exchange: a request of a client, and everything that was sent as its response.
#[derive(Clone, Debug)]
pub struct ExchangeRecord {
    /// When the exchange was over.
    pub ended_at: SystemTime,
    /// From the head of the request to the last byte of the response that was passed on.
    pub duration: Duration,
    /// The tenant; `None` if the request named none that exists.
    pub tenant: Option<Arc<str>>,
    /// The beginning of the session's id.
    pub session: Option<SessionTag>,
    /// The revision of the session.
    pub revision: Option<&'static str>,
    /// The name and the version of the client, as it gave them at the handshake.
    pub client: Option<Label>,
    /// The endpoint of the request, or `stdio`.
    pub endpoint: &'static str,
    /// The method of HTTP; empty where there is none.
    pub verb: &'static str,
    /// The method of the message; `batch` for several.
    pub method: Option<Label>,
    /// The tool that the message calls.
    pub tool: Option<Label>,
    /// How the exchange ended.
    pub outcome: Outcome,
    /// The HTTP status; 0 if none was sent.
    pub status: u16,
    /// The code of the JSON-RPC error.
    pub code: Option<i32>,
    /// The length of the request's body.
    pub bytes_in: u64,
    /// The length of the response's body, as far as it was passed on.
    pub bytes_out: u64,
    /// The node with the client's connection.
    pub node: Arc<str>,
    /// The node that owns the session, if the request was forwarded.
    pub owner: Option<Arc<str>>,
    /// The trace of the message, if it is traced.
    pub trace: Option<SpanRef>,
}

impl ExchangeRecord {
    /// Of an exchange that begins at this node, of which nothing else is known: the client left.
    pub fn begun(verb: &'static str, endpoint: &'static str, node: &Arc<str>) -> Self {
        Self {
            ended_at: SystemTime::UNIX_EPOCH,
            duration: Duration::ZERO,
            tenant: None,
            session: None,
            revision: None,
            client: None,
            endpoint,
            verb,
            method: None,
            tool: None,
            outcome: Outcome::Left,
            status: 0,
            code: None,
            bytes_in: 0,
            bytes_out: 0,
            node: Arc::clone(node),
            owner: None,
            trace: None,
        }
    }
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a result.
    Result,
    /// With a JSON-RPC error.
    Error,
    /// With a result that is a tool's own error (`isError`).
    ToolError,
    /// The message was accepted; it has no response, or the response is sent elsewhere.
    Accepted,
    /// The session was ended.
    Ended,
    /// The client cancelled its request.
    Cancelled,
    /// A stream without a final response of its own ended in order.
    Streamed,
    /// The request was refused with a status.
    Refused,
    /// The client left before the end.
    Left,
    /// The node broke the stream off, so that the client resumes it.
    Broken,
}

impl Outcome {
    /// Every outcome, at the position that is its number.
    pub const ALL: [Self; 10] = [
        Self::Result,
        Self::Error,
        Self::ToolError,
        Self::Accepted,
        Self::Ended,
        Self::Cancelled,
        Self::Streamed,
        Self::Refused,
        Self::Left,
        Self::Broken,
    ];

    /// The name, for logs and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Error => "error",
            Self::ToolError => "tool_error",
            Self::Accepted => "accepted",
            Self::Ended => "ended",
            Self::Cancelled => "cancelled",
            Self::Streamed => "streamed",
            Self::Refused => "refused",
            Self::Left => "left",
            Self::Broken => "broken",
        }
    }

    /// Whether the client did not get what it asked for, by an error, a tool's own included, or a
    /// refusal.
    pub fn is_error(self) -> bool {
        matches!(self, Self::Error | Self::ToolError | Self::Refused)
    }
}

/// The beginning of a session's id: enough to find the lines of a session, and too little to use
/// the session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionTag {
    text: [u8; Self::BYTES_MAX],
    len: u8,
}

impl SessionTag {
    /// How much of an id is kept, in bytes.
    const BYTES_MAX: usize = 8;

    /// The beginning of this id: at most 8 bytes, and at most half of the id.
    pub fn of(session: &str) -> Self {
        let mut end = (session.len() / 2).clamp(usize::from(!session.is_empty()), Self::BYTES_MAX);
        while !session.is_char_boundary(end) {
            end -= 1;
        }
        let mut text = [0; Self::BYTES_MAX];
        text[..end].copy_from_slice(&session.as_bytes()[..end]);
        Self { text, len: end as u8 }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Cut at a boundary of a character.
        std::str::from_utf8(&self.text[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Debug for SessionTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", self.as_str())
    }
}

/// A short text for a log: letters, digits, spaces and visible ASCII only. Any other character is a
/// `?`, so that no text ends a line, hides another or changes the direction of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// A text of the program.
    Known(&'static str),
    /// A text that a client or a server chose.
    Given(Arc<str>),
}

impl Label {
    /// The greatest length of a text that was chosen elsewhere, in bytes; a longer one is cut.
    pub const BYTES_MAX: usize = 64;

    /// The label of a text that a client or a server chose.
    pub fn of(text: &str) -> Self {
        let cut = &text[..text.floor_char_boundary(Self::BYTES_MAX)];
        if cut.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Self::Given(cut.into());
        }
        let tame = |char: char| match char {
            ' '..='~' => char,
            _ if char.is_alphanumeric() => char,
            _ => '?',
        };
        Self::Given(cut.chars().map(tame).collect::<String>().into())
    }

    /// The text, for a reader that keeps it.
    pub fn into_string(self) -> String {
        self.as_str().to_owned()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(text) => text,
            Self::Given(text) => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_named_by_less_than_half_of_its_id() {
        let check = |id: &str, tag: &str| assert_eq!(SessionTag::of(id).as_str(), tag);
        check("0123456789abcdef-0123", "01234567");
        check("abcdef", "abc");
        check("a", "a");
        check("", "");
        check("äöüäöü", "äöü");
    }

    #[test]
    fn a_label_is_short_and_holds_nothing_that_disturbs_a_log() {
        let check = |text: &str, label: &str| assert_eq!(Label::of(text).as_str(), label);
        check("claude-code/1.0 (x)", "claude-code/1.0 (x)");
        check("a\nb\u{1b}[2J\u{202e}\u{0}ä字", "a?b?[2J??ä字");
        assert_eq!(Label::of(&"ä".repeat(100)).as_str().len(), Label::BYTES_MAX);
    }

    #[test]
    fn each_outcome_stands_at_its_number() {
        for (number, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, number);
        }
    }
}
