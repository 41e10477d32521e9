//! Calls and replies as they are sent between nodes: Protocol Buffers messages.
//!
//! A field number is never reused. A receiver ignores unknown fields, so a field may be added if
//! its absence has the former meaning. Any other change takes a new version in
//! [`super::PAYLOAD_VERSIONS`]. A payload is a slice of the received frame.
//!
//! The required field of a message comes last, so that a truncated message is never read as a
//! smaller one.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use protocol::{
    AccountLink, ErrorCode, Mirrored, OtherNode, RequestId, TokenSource, UpstreamToken,
    UpstreamTokens,
};

use super::operator_messages::OperatorCall;

/// A message that one node sends to make a call.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Request {
    #[prost(oneof = "RequestKind", tags = "1, 2, 3, 4, 10, 11")]
    pub(super) kind: Option<RequestKind>,
}

/// The kind of a call.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum RequestKind {
    /// Serve or claim a session.
    #[prost(message, tag = "1")]
    Call(Call),
    /// Create a session.
    #[prost(message, tag = "2")]
    Opening(Opening),
    /// Relay a call.
    #[prost(message, tag = "3")]
    Relay(Relay),
    /// Add revocations, and reply with others.
    #[prost(message, tag = "4")]
    Revocations(Revocations),
    /// An operator asks for something.
    #[prost(message, tag = "10")]
    Operator(OperatorCall),
    /// Demand for limits of the cluster, as [`crate::limits`] encodes it. Since version 4.
    #[prost(bytes = "bytes", tag = "11")]
    Limits(Bytes),
}

/// The tenant of a call about a session, from its bytes. The rest is skipped.
pub(super) fn tenant_of(call: &[u8]) -> Option<Arc<str>> {
    let TenantOfRequest { call, opening } = TenantOfRequest::decode(call).ok()?;
    call.or(opening).map(|of| of.tenant.into())
}

/// What [`tenant_of`] reads of a [`Request`].
#[derive(Clone, PartialEq, prost::Message)]
struct TenantOfRequest {
    #[prost(message, optional, tag = "1")]
    call: Option<OfTenant>,
    #[prost(message, optional, tag = "2")]
    opening: Option<OfTenant>,
}

/// What [`tenant_of`] reads of a [`Call`] or an [`Opening`].
#[derive(Clone, PartialEq, prost::Message)]
struct OfTenant {
    #[prost(string, tag = "1")]
    tenant: String,
}

/// A request of a caller for a session.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Call {
    #[prost(string, tag = "1")]
    pub(super) tenant: String,
    #[prost(string, tag = "2")]
    pub(super) principal: String,
    #[prost(string, tag = "3")]
    pub(super) session: String,
    #[prost(oneof = "CallKind", tags = "4, 5, 6, 7")]
    pub(super) kind: Option<CallKind>,
    /// Where the request is in a trace, as a `traceparent`.
    #[prost(string, optional, tag = "8")]
    pub(super) trace: Option<String>,
    /// The tokens for upstream servers.
    #[prost(message, repeated, tag = "9")]
    pub(super) tokens: Vec<Token>,
    /// The client has none, where upstream servers need some.
    #[prost(bool, tag = "10")]
    pub(super) has_no_tokens: bool,
}

/// A token for an upstream server.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
pub(super) struct Token {
    #[prost(string, tag = "1")]
    pub(super) backend: String,
    #[prost(string, tag = "2")]
    pub(super) text: String,
    /// Where the user links an account first: the id and the URL.
    #[prost(string, tag = "3")]
    pub(super) link_id: String,
    #[prost(string, tag = "4")]
    pub(super) link_url: String,
}

/// Prints nothing of the token.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// Tokens as they are sent. Where others can be got stays at this node.
pub(super) fn tokens(tokens: Option<&UpstreamTokens>) -> Vec<Token> {
    let token = |token: &UpstreamToken| Token {
        backend: token.backend.to_string(),
        text: token.text.to_string(),
        link_id: token.link.as_ref().map(|link| link.id.clone()).unwrap_or_default(),
        link_url: token.link.as_ref().map(|link| link.url.clone()).unwrap_or_default(),
    };
    tokens.map(|tokens| tokens.all().iter().map(token).collect()).unwrap_or_default()
}

/// Whether the client has no token, where upstream servers need some.
pub(super) fn has_no_tokens(tokens: Option<&UpstreamTokens>) -> bool {
    tokens.is_some_and(|tokens| tokens.all().is_empty())
}

/// Tokens as they were received. Which of them are refused is sent back.
pub(super) fn read_tokens(tokens: Vec<Token>, has_none: bool) -> Option<UpstreamTokens> {
    let token = |Token { backend, text, link_id: id, link_url: url }| {
        let link = (!id.is_empty()).then(|| Arc::new(AccountLink { id, url }));
        let source: Option<Arc<dyn TokenSource>> = Some(Arc::new(OtherNode::default()));
        UpstreamToken { backend: backend.into(), text: text.into(), source, link }
    };
    (has_none || !tokens.is_empty()).then(|| tokens.into_iter().map(token).collect())
}

/// The kind of a request.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum CallKind {
    /// The client sends one message.
    #[prost(message, tag = "4")]
    Post(Post),
    /// The client opens a stream.
    #[prost(message, tag = "5")]
    Listen(Listen),
    /// The client ends the session.
    #[prost(message, tag = "6")]
    Delete(()),
    /// The receiver is to claim the session.
    #[prost(message, tag = "7")]
    TakeUp(()),
}

/// The POST of a client.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Post {
    /// Whether a former owner may have handled it.
    #[prost(bool, tag = "1")]
    pub(super) again: bool,
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<Header>,
    #[prost(oneof = "PostBody", tags = "3, 4")]
    pub(super) body: Option<PostBody>,
}

/// The body of a POST.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum PostBody {
    #[prost(bytes = "bytes", tag = "3")]
    Message(Bytes),
    #[prost(message, tag = "4")]
    Batch(Batch),
}

/// The members of a batch: a member that the sender refused stays refused.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Batch {
    #[prost(message, repeated, tag = "1")]
    pub(super) members: Vec<Member>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Member {
    #[prost(oneof = "MemberKind", tags = "1, 2")]
    pub(super) kind: Option<MemberKind>,
    /// Where the request is in a trace, as a `traceparent`.
    #[prost(string, optional, tag = "3")]
    pub(super) trace: Option<String>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum MemberKind {
    #[prost(bytes = "bytes", tag = "1")]
    Message(Bytes),
    /// Boxed, so that a list of short members takes little more than it was received in.
    #[prost(message, boxed, tag = "2")]
    Rejection(Box<Rejection>),
}

/// A mirrored header of a POST. Its value is short: to copy it takes less than to share it.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Header {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

/// A stream that a client opens.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Listen {
    /// `Last-Event-ID`.
    #[prost(string, optional, tag = "1")]
    pub(super) after: Option<String>,
}

/// A session to be created.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Opening {
    #[prost(string, tag = "1")]
    pub(super) tenant: String,
    #[prost(uint64, tag = "2")]
    pub(super) sessions_max: u64,
    #[prost(string, tag = "3")]
    pub(super) principal: String,
    #[prost(message, repeated, tag = "4")]
    pub(super) headers: Vec<Header>,
    /// The `initialize`; `None` for a duplex session.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub(super) request: Option<Bytes>,
    /// The tokens for upstream servers.
    #[prost(message, repeated, tag = "6")]
    pub(super) tokens: Vec<Token>,
    /// Where the request is in a trace, as a `traceparent`.
    #[prost(string, optional, tag = "7")]
    pub(super) trace: Option<String>,
    /// As of a [`Call`].
    #[prost(bool, tag = "8")]
    pub(super) has_no_tokens: bool,
}

/// A call to relay, as its receiver reads it. The call itself stays unchanged.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Relay {
    /// The node that is to serve the call.
    #[prost(fixed64, tag = "1")]
    pub(super) owner: u64,
    /// A [`Request`] with a [`Call`].
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) request: Bytes,
}

/// Revocations, as a call and as its reply. Since version 4.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Revocations {
    #[prost(message, repeated, tag = "1")]
    pub(super) revocations: Vec<Revocation>,
    /// The fingerprint of the sender's list.
    #[prost(fixed64, tag = "2")]
    pub(super) fingerprint: u64,
}

/// When a client was revoked, and when that was taken back, in milliseconds since 1970.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Revocation {
    #[prost(string, tag = "1")]
    pub(super) tenant: String,
    #[prost(string, tag = "2")]
    pub(super) principal: String,
    #[prost(uint64, tag = "3")]
    pub(super) lifted_ms: u64,
    #[prost(uint64, tag = "4")]
    pub(super) revoked_ms: u64,
}

/// The request of a [`Relay`], as its sender encodes it: its payload is copied once. The bytes are
/// the same.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RelayRequest {
    #[prost(message, optional, tag = "3")]
    pub(super) relay: Option<RelayOut>,
}

/// See [`RelayRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RelayOut {
    #[prost(fixed64, tag = "1")]
    pub(super) owner: u64,
    #[prost(message, optional, tag = "2")]
    pub(super) request: Option<Request>,
}

/// One event of a reply.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Reply {
    #[prost(
        oneof = "ReplyKind",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17"
    )]
    pub(super) kind: Option<ReplyKind>,
    /// With the first event of a reply: for logs.
    #[prost(message, optional, tag = "18")]
    pub(super) handshake: Option<Handshake>,
    /// The backends whose servers refused the tokens of the call.
    #[prost(string, repeated, tag = "19")]
    pub(super) refused: Vec<String>,
}

/// What logs say of the session's handshake.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Handshake {
    #[prost(string, tag = "1")]
    pub(super) revision: String,
    #[prost(string, tag = "2")]
    pub(super) client: String,
}

/// The kind of an event.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum ReplyKind {
    /// The whole answer: one JSON-RPC message.
    #[prost(bytes = "bytes", tag = "1")]
    Json(Bytes),
    /// A message of a stream.
    #[prost(message, tag = "2")]
    Message(Event),
    /// The head of a stream.
    #[prost(message, tag = "3")]
    Open(Open),
    /// The whole answer: the message was accepted.
    #[prost(message, tag = "4")]
    Accepted(()),
    /// The whole answer: the first message of a session.
    #[prost(bytes = "bytes", tag = "5")]
    Welcome(Bytes),
    /// The whole answer: a batch.
    #[prost(message, tag = "6")]
    Array(Array),
    /// The whole answer: no content.
    #[prost(message, tag = "7")]
    Nothing(()),
    /// The whole answer: the session has ended.
    #[prost(message, tag = "8")]
    Ended(()),
    /// The whole answer: a refusal, by its number in [`super::reply_codec`].
    #[prost(uint32, tag = "9")]
    Refused(u32),
    /// The whole answer: the message breaks a rule.
    #[prost(message, tag = "10")]
    Rejected(Rejection),
    /// A position of a stream at which its client can resume.
    #[prost(message, tag = "11")]
    Cursor(Cursor),
    /// The time that a client waits before it reconnects, in milliseconds.
    #[prost(uint32, tag = "12")]
    Retry(u32),
    /// A frame without content.
    #[prost(message, tag = "13")]
    KeepAlive(()),
    /// The stream breaks off.
    #[prost(message, tag = "14")]
    Abort(()),
    /// The session has left its owner.
    #[prost(message, tag = "15")]
    Moved(()),
    /// The owner lost its lease; the value is how long the request was held, in seconds.
    #[prost(uint64, tag = "16")]
    LeaseLost(u64),
    /// The id of a new session. Only before the first reply of a call that creates one.
    #[prost(string, tag = "17")]
    Opened(String),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Event {
    #[prost(message, optional, tag = "1")]
    pub(super) id: Option<EventId>,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) data: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Open {
    #[prost(bool, tag = "1")]
    pub(super) welcome: bool,
    #[prost(message, optional, tag = "2")]
    pub(super) at: Option<EventId>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Array {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub(super) messages: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Cursor {
    #[prost(uint32, tag = "1")]
    pub(super) retry: u32,
    #[prost(message, optional, tag = "2")]
    pub(super) id: Option<EventId>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(super) struct EventId {
    #[prost(uint64, tag = "1")]
    stream: u64,
    #[prost(fixed64, tag = "2")]
    owner_tag: u64,
    #[prost(uint64, tag = "3")]
    number: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Rejection {
    /// The position in [`CODES`], counted from 1.
    #[prost(uint32, tag = "1")]
    code: u32,
    #[prost(string, tag = "2")]
    message: String,
    /// The id of the rejected request, as JSON.
    #[prost(string, optional, tag = "3")]
    id: Option<String>,
    /// The `data` of the error, as JSON.
    #[prost(string, optional, tag = "4")]
    data: Option<String>,
}

/// Every code, at the position that is its number.
const CODES: [ErrorCode; 8] = [
    ErrorCode::ParseError,
    ErrorCode::InvalidRequest,
    ErrorCode::MethodNotFound,
    ErrorCode::InvalidParams,
    ErrorCode::InternalError,
    ErrorCode::HeaderMismatch,
    ErrorCode::SessionNotFound,
    ErrorCode::Refused,
];

/// Encodes a message into an allocation of its exact size: a payload is copied once.
pub(super) fn encode(message: &impl prost::Message) -> Bytes {
    message.encode_to_vec().into()
}

impl Request {
    /// Decodes a call from a peer; `None` for invalid bytes.
    pub(super) fn read(bytes: Bytes) -> Option<RequestKind> {
        Self::decode(bytes).ok()?.kind
    }
}

impl From<RequestKind> for Request {
    fn from(kind: RequestKind) -> Self {
        Self { kind: Some(kind) }
    }
}

/// The headers, as [`mirrored`] takes them.
pub(super) fn headers(mirrored: Option<&Mirrored>) -> Vec<Header> {
    let header =
        |(name, value): (&str, &[u8])| Header { name: name.to_owned(), value: value.to_owned() };
    mirrored.into_iter().flat_map(Mirrored::headers).map(header).collect()
}

/// The mirrored headers of a POST.
pub(super) fn mirrored(headers: &[Header]) -> Option<Box<Mirrored>> {
    Mirrored::from_headers(headers.iter().map(|header| (&*header.name, &*header.value)))
}

impl From<conversation::EventId> for EventId {
    fn from(id: conversation::EventId) -> Self {
        Self { stream: id.stream, owner_tag: id.owner_tag.0, number: id.number }
    }
}

impl From<EventId> for conversation::EventId {
    fn from(EventId { stream, owner_tag, number }: EventId) -> Self {
        Self { stream, owner_tag: conversation::OwnerTag(owner_tag), number }
    }
}

impl From<&protocol::Rejection> for Rejection {
    fn from(rejection: &protocol::Rejection) -> Self {
        let code = CODES.iter().position(|code| *code == rejection.code);
        Self {
            code: code.map_or(0, |position| position as u32 + 1),
            message: rejection.message.clone(),
            id: rejection.id.as_ref().map(RequestId::to_json),
            data: rejection.data.as_deref().map(str::to_owned),
        }
    }
}

impl Rejection {
    /// `None` for values that no node writes.
    pub(super) fn read(self) -> Option<protocol::Rejection> {
        let code = *CODES.get(usize::try_from(self.code.checked_sub(1)?).ok()?)?;
        let id = match self.id {
            Some(id) => Some(RequestId::from_json(&id)?),
            None => None,
        };
        let data = self.data.map(String::into_boxed_str);
        Some(protocol::Rejection { data, ..protocol::Rejection::new(code, self.message) }.of(id))
    }
}
