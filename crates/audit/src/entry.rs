//! What a record says.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::line;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A call is about to be dispatched.
    Begin = 0,
    /// The call is over, as far as the node with the client's connection knows.
    End = 1,
    /// A message without a response is about to be dispatched, or a session to be ended.
    Message = 2,
    /// A request was refused, and not dispatched.
    Refused = 3,
    /// The sender of a request could not be authenticated.
    SignInFailed = 4,
    /// Sessions and credentials of a subject were revoked.
    Revoked = 5,
    /// An operator did something.
    Admin = 6,
    /// So many records were left out.
    LeftOut = 7,
    /// A server has a definition that is not the approved one.
    Definition = 8,
}

impl Kind {
    /// Every kind, at the position that is its number.
    pub const ALL: [Self; 9] = [
        Self::Begin,
        Self::End,
        Self::Message,
        Self::Refused,
        Self::SignInFailed,
        Self::Revoked,
        Self::Admin,
        Self::LeftOut,
        Self::Definition,
    ];

    /// Whether something is done only when the record is written.
    pub(crate) fn is_waited_for(self) -> bool {
        matches!(self, Self::Begin | Self::Message | Self::Revoked | Self::Admin)
    }

    /// The name, for records and labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::End => "end",
            Self::Message => "message",
            Self::Refused => "refused",
            Self::SignInFailed => "sign_in_failed",
            Self::Revoked => "revoked",
            Self::Admin => "admin",
            Self::LeftOut => "left_out",
            Self::Definition => "definition",
        }
    }
}

/// Joins the `begin` and the `end` of a call, as the digits that both have. No two calls have the same one,
/// also of different nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub(crate) [u8; 32]);

impl CallId {
    /// The id with these halves.
    pub(crate) fn new(first: u64, second: u64) -> Self {
        Self::within(&line::hex_digits(first), second)
    }

    /// The id whose first half has these digits.
    pub(crate) fn within(first: &[u8; 16], second: u64) -> Self {
        let mut digits = [0; 32];
        digits[..16].copy_from_slice(first);
        digits[16..].copy_from_slice(&line::hex_digits(second));
        Self(digits)
    }

    /// The id of a call whose end another thread or node records, which knows only this: the session,
    /// and the JSON text of the request's id.
    pub fn of_request(session: &str, request: &str) -> Self {
        let digest = Sha256::new().chain_update(session).chain_update([0]).chain_update(request);
        let digest = digest.finalize();
        let [first, second, ..] = digest.as_chunks::<8>().0 else { return Self::new(0, 0) };
        Self::new(u64::from_be_bytes(*first), u64::from_be_bytes(*second))
    }
}

/// The beginning of the SHA-256 of a session's id. The id is random, so the digest does not reveal it;
/// a reader who has the id finds the records of the session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SessionDigest(pub(crate) u64);

impl SessionDigest {
    /// The digest of this id.
    pub fn of(session: &str) -> Self {
        let digest = Sha256::digest(session);
        let [first, ..] = digest.as_chunks::<8>().0 else { return Self(0) };
        Self(u64::from_be_bytes(*first))
    }

    /// The digest with these first eight bytes, as a number.
    pub fn of_number(first: u64) -> Self {
        Self(first)
    }
}

impl fmt::Debug for SessionDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The greatest length of a text among a record's fields, in bytes; a longer one is cut.
pub const FIELD_BYTES_MAX: usize = 256;

/// A part of a payload that the tenant's settings name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// A text, or the JSON text of a list or an object.
    Text(Cow<'a, str>),
    /// A number, `true`, `false` or `null`, as its JSON text.
    Plain(&'a str),
}

/// The JSON-RPC id of a request. Either form is a text in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestName<'a> {
    /// A number.
    Number(i64),
    /// A text.
    Text(&'a str),
}

/// Who sends a request, and to what.
#[derive(Clone, Copy, Debug, Default)]
pub struct Origin<'a> {
    /// What names the client: `key`, `subject` or `client`, which is the id of a client of the issuer.
    pub principal: Option<&'static str>,
    /// The issuer of the client's token.
    pub issuer: Option<&'a str>,
    /// The subject: of the key or the token of the client, or the one that is revoked.
    pub subject: Option<&'a str>,
    /// The session.
    pub session: Option<SessionDigest>,
    /// The endpoint of the request.
    pub endpoint: Option<&'a str>,
}

/// The client of a session, the session, and the endpoint. What follows from these is made once for many records.
#[derive(Clone, Copy)]
pub struct SessionOrigin<'a> {
    /// The whole id. Records have its digest.
    pub session: &'a str,
    /// The name of the client.
    pub client: &'a str,
    /// The endpoint of the request.
    pub endpoint: &'static str,
    /// What a name says: the principal, the issuer and the subject.
    pub of_client: fn(&str) -> Origin<'_>,
}

impl SessionOrigin<'_> {
    /// The same as a record has it.
    pub(crate) fn parts(&self) -> Origin<'_> {
        let (session, endpoint) = (Some(SessionDigest::of(self.session)), Some(self.endpoint));
        Origin { session, endpoint, ..(self.of_client)(self.client) }
    }
}

/// As records have it: without the session's id.
impl fmt::Debug for SessionOrigin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts().fmt(f)
    }
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug, Default)]
pub enum OriginSource<'a> {
    /// Another record has it.
    #[default]
    Elsewhere,
    /// From a client, as far as it is known.
    Parts(Origin<'a>),
    /// From the client of a session.
    Session(SessionOrigin<'a>),
}

impl<'a> From<Origin<'a>> for OriginSource<'a> {
    fn from(origin: Origin<'a>) -> Self {
        Self::Parts(origin)
    }
}

/// What is known for a record. What is not known is left out. Texts are cut and escaped when they are
/// written, so they may come from a client.
#[derive(Clone, Debug, Default)]
pub struct Entry<'a> {
    /// When it happened; `None` for now, or a moment ago: see [`crate::Recorder::begin`].
    pub at: Option<Instant>,
    /// Joins the two records of a call.
    pub call: Option<CallId>,
    /// Where the request comes from.
    pub origin: OriginSource<'a>,
    /// The JSON-RPC id of the request.
    pub request: Option<RequestName<'a>>,
    /// The method of the message.
    pub method: Option<&'a str>,
    /// The kind and the name of what the message is about: a tool, a prompt, a resource.
    pub about: Option<(&'static str, &'a str)>,
    /// Whether servers could read another name than this one.
    pub is_ambiguous: bool,
    /// The parts of the payload that the tenant's settings name.
    pub fields: &'a [(&'a str, FieldValue<'a>)],
    /// What is done, where no method says it.
    pub action: Option<&'a str>,
    /// Who did it: the name of a credential of operators.
    pub by: Option<&'a str>,
    /// What it was done to.
    pub target: Option<&'a str>,
    /// How it ended.
    pub outcome: Option<&'a str>,
    /// Why it was refused.
    pub reason: Option<&'a str>,
    /// The HTTP status.
    pub status: Option<u16>,
    /// The code of the JSON-RPC error.
    pub code: Option<i32>,
    /// How long the call took.
    pub duration: Option<Duration>,
    /// The length of the request.
    pub bytes_in: Option<u64>,
    /// The length of the response, as far as it was passed on.
    pub bytes_out: Option<u64>,
    /// The number of sessions, or of records.
    pub count: Option<u64>,
    /// The id of the trace that the client named.
    pub trace: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_stands_at_its_number() {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            let mut line = Vec::new();
            line::write(&mut line, kind, b"", None, &Entry::default());
            let expected = format!(",\"kind\":\"{}\"}}\n", kind.as_str());
            assert_eq!(str::from_utf8(&line), Ok(&*expected));
        }
    }

    #[test]
    fn a_session_has_one_digest_and_shows_nothing_of_its_id() {
        let digest = SessionDigest::of("0123456789abcdef");
        assert_eq!(digest, SessionDigest::of("0123456789abcdef"));
        assert_ne!(digest, SessionDigest::of("0123456789abcdee"));
        // `printf 0123456789abcdef | sha256sum`
        assert_eq!(format!("{digest:?}"), "9f9f5111f7b27a78");
    }

    #[test]
    fn a_request_of_a_session_has_one_id() {
        let id = CallId::of_request("s", "1");
        assert_eq!(id, CallId::of_request("s", "1"));
        assert_ne!(id, CallId::of_request("s", "\"1\""));
        assert_ne!(id, CallId::of_request("s1", ""));
    }
}
