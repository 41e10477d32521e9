//! JSON-RPC 2.0 envelopes over raw JSON: payloads pass through byte for byte.
//!
//! A parsed message keeps its bytes and the positions of its parts in them, so that a clone of
//! the message or of its parameters copies nothing.

mod parse;
mod tokens;
mod traced;

pub use parse::{Limits, parse};
pub use tokens::{AccountLink, OtherNode, TokenSource, UpstreamToken, UpstreamTokens};
pub use traced::{TraceContext, TraceParent, is_trace_state};

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memmem::Finder;

use crate::raw::{Needle, Object, may_hold, pick, with_member};
use crate::{ErrorCode, Method, ProgressToken, Rejection, RequestId};

/// The content of one HTTP body or one stdio line.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A single message.
    One(Message),
    /// A JSON-RPC batch, never empty. Each member that is not a message is answered separately.
    Batch(Vec<Result<Message, Rejection>>),
}

impl Body {
    /// The length of the messages.
    pub fn bytes(&self) -> usize {
        match self {
            Self::One(message) => message.raw().len(),
            Self::Batch(members) => {
                members.iter().flatten().map(|message| message.raw().len()).sum()
            }
        }
    }
}

/// One JSON-RPC message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A request, which is answered by one response.
    Request(Request),
    /// A notification, which is not answered.
    Notification(Notification),
    /// The response to a request.
    Response(Response),
}

/// A message that is answered by exactly one response.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Unique among the requestor's requests in flight.
    pub id: RequestId,
    /// The method of the request.
    pub method: Method,
    /// Where the request is in a trace that this cluster records. It is not part of its bytes.
    pub trace: Option<Box<TraceContext>>,
    /// The tokens with which it is authorized at upstream servers. They are not part of its bytes.
    pub tokens: Option<UpstreamTokens>,
    raw: Bytes,
    id_at: Span,
    params: Option<Span>,
}

/// A message that is never answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification {
    /// The method of the notification.
    pub method: Method,
    raw: Bytes,
    params: Option<Span>,
}

/// The final response to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The request's id; absent if the other side could not parse it (RPC-06).
    pub id: Option<RequestId>,
    raw: Bytes,
    id_at: Option<Span>,
    result: Option<Span>,
    error: Option<Span>,
    /// See [`Self::is_failure`]. It is not part of its bytes.
    is_failure: bool,
}

type Span = Range<usize>;

impl Message {
    /// Parses one message; a batch is rejected.
    pub fn parse(raw: Bytes) -> Result<Self, Rejection> {
        match parse(raw, &Limits::default())? {
            Body::One(message) => Ok(message),
            Body::Batch(_) => Err(Rejection::new(
                ErrorCode::InvalidRequest,
                "a batch where a single message was expected; send its members one by one",
            )),
        }
    }

    /// The bytes of the whole message.
    pub fn raw(&self) -> &Bytes {
        match self {
            Self::Request(request) => &request.raw,
            Self::Notification(notification) => &notification.raw,
            Self::Response(response) => &response.raw,
        }
    }

    /// The message on one line, as stdio and SSE require. Raw line breaks occur only between
    /// tokens, so they are replaced by spaces.
    pub fn line(&self) -> Bytes {
        one_line(self.raw())
    }
}

/// Replaces raw line breaks in `json`; returns the same bytes if it has none.
fn one_line(json: &Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', json).is_none() {
        return json.clone();
    }
    json.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect()
}

impl Request {
    /// Creates a request. `params` is JSON text.
    pub fn new(id: RequestId, method: Method, params: Option<&[u8]>) -> Self {
        let mut raw = BytesMut::new();
        raw.put_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        let id_at = put(&mut raw, id.to_json().as_bytes());
        let params = put_method(&mut raw, &method, params);
        Self { id, method, trace: None, tokens: None, raw: raw.freeze(), id_at, params }
    }

    /// The bytes of the whole message.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The parameters' JSON text.
    pub fn params(&self) -> Option<Bytes> {
        self.params.clone().map(|span| self.raw.slice(span))
    }

    /// The parameters' JSON text, borrowed.
    pub(crate) fn params_text(&self) -> Option<&[u8]> {
        self.raw.get(self.params.clone()?)
    }

    /// The JSON text of the id.
    pub(crate) fn id_text(&self) -> &[u8] {
        &self.raw[self.id_at.clone()]
    }

    /// The text before the parameters, and that behind them.
    pub(crate) fn envelope(&self) -> [&[u8]; 2] {
        let params = self.params.clone().unwrap_or(self.raw.len()..self.raw.len());
        [&self.raw[..params.start], &self.raw[params.end..]]
    }

    /// The same request with another id; every other byte stays.
    pub fn with_id(&self, id: RequestId) -> Self {
        let (raw, id_at, shift) = splice(&self.raw, &self.id_at, id.to_json().as_bytes());
        let params = self.params.clone().map(|span| shift.apply(span));
        let method = self.method.clone();
        let (trace, tokens) = (self.trace.clone(), self.tokens.clone());
        Self { id, method, trace, tokens, raw, id_at, params }
    }

    /// The same request with these tokens for upstream servers.
    pub fn with_tokens(self, tokens: Option<UpstreamTokens>) -> Self {
        Self { tokens, ..self }
    }

    /// The same request with other parameters.
    pub fn with_params(&self, params: &[u8]) -> Self {
        let Some(span) = &self.params else {
            let end = self.raw.len() - 1; // The closing brace.
            let member = [&b",\"params\":"[..], params].concat();
            let (raw, member, _) = splice(&self.raw, &(end..end), &member);
            let params = Some(member.end - params.len()..member.end);
            return Self { raw, params, ..self.clone() };
        };
        let (raw, params, shift) = splice(&self.raw, span, params);
        let id_at = shift.apply(self.id_at.clone());
        let (id, method) = (self.id.clone(), self.method.clone());
        let (trace, tokens) = (self.trace.clone(), self.tokens.clone());
        Self { id, method, trace, tokens, raw, id_at, params: Some(params) }
    }

    /// `params._meta.progressToken`, if the request has one (PRG-01).
    pub fn progress_token(&self) -> Option<ProgressToken> {
        let params = &self.raw[self.params.clone()?];
        static PROGRESS_TOKEN: Needle = Needle::new(|| Finder::new("progressToken"));
        // Most requests have no token, which this search finds without a parse.
        if !may_hold(params, &PROGRESS_TOKEN) {
            return None;
        }
        let [meta] = pick(params, ["_meta"])?;
        let [token] = pick(meta?.as_bytes(), ["progressToken"])?;
        serde_json::from_str(token?).ok()
    }

    /// The same request with another `params._meta.progressToken`. A request without a token
    /// stays unchanged.
    pub fn with_progress_token(&self, token: &ProgressToken) -> Self {
        let with_token = || {
            let params = &self.raw[self.params.clone()?];
            let meta = Object::read(params)?.get("_meta")?;
            Object::read(meta.as_bytes())?.get("progressToken")?;
            let meta = with_member(meta.as_bytes(), "progressToken", &token.to_json())?;
            with_member(params, "_meta", std::str::from_utf8(&meta).ok()?)
        };
        with_token().map_or_else(|| self.clone(), |params| self.with_params(&params))
    }
}

impl Notification {
    /// Creates a notification. `params` is JSON text.
    pub fn new(method: Method, params: Option<&[u8]>) -> Self {
        let mut raw = BytesMut::new();
        raw.put_slice(b"{\"jsonrpc\":\"2.0\"");
        let params = put_method(&mut raw, &method, params);
        Self { method, raw: raw.freeze(), params }
    }

    /// The bytes of the whole message.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The parameters' JSON text.
    pub fn params(&self) -> Option<Bytes> {
        self.params.clone().map(|span| self.raw.slice(span))
    }
}

impl Response {
    /// Creates a response with a result. `result` is JSON text.
    pub fn result(id: RequestId, result: &[u8]) -> Self {
        let mut raw = BytesMut::with_capacity(result.len() + 64);
        raw.put_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        let id_at = put(&mut raw, id.to_json().as_bytes());
        raw.put_slice(b",\"result\":");
        let result = put(&mut raw, result);
        raw.put_u8(b'}');
        Self {
            id: Some(id),
            raw: raw.freeze(),
            id_at: Some(id_at),
            result: Some(result),
            error: None,
            is_failure: false,
        }
    }

    /// Creates the response to a request that a server did not answer, with the reason.
    pub fn failure(id: RequestId, code: i32, reason: &str) -> Self {
        Self { is_failure: true, ..Self::error(Some(id), code, reason, None) }
    }

    /// Whether this program made it, since the server did not answer. The reason has no text of the server.
    pub fn is_failure(&self) -> bool {
        self.is_failure
    }

    /// Creates a response with an error. Without an id the member is left out (RPC-06). `data` is
    /// JSON text.
    pub fn error(id: Option<RequestId>, code: i32, message: &str, data: Option<&[u8]>) -> Self {
        let mut object = BytesMut::new();
        object.put_slice(format!("{{\"code\":{code},\"message\":").as_bytes());
        object.put_slice(serde_json::to_string(message).unwrap_or_default().as_bytes());
        if let Some(data) = data {
            object.put_slice(b",\"data\":");
            object.put_slice(data);
        }
        object.put_u8(b'}');
        Self::raw_error(id, &object)
    }

    /// Creates a response with an error object that is given as JSON text.
    pub fn raw_error(id: Option<RequestId>, object: &[u8]) -> Self {
        let mut raw = BytesMut::with_capacity(object.len() + 64);
        raw.put_slice(b"{\"jsonrpc\":\"2.0\"");
        let id_at = id.as_ref().map(|id| {
            raw.put_slice(b",\"id\":");
            put(&mut raw, id.to_json().as_bytes())
        });
        raw.put_slice(b",\"error\":");
        let error = put(&mut raw, object);
        raw.put_u8(b'}');
        let (raw, error) = (raw.freeze(), Some(error));
        Self { id, raw, id_at, result: None, error, is_failure: false }
    }

    /// Creates the response to a message that was rejected.
    pub fn rejecting(rejection: &Rejection) -> Self {
        let data = rejection.data.as_deref().map(str::as_bytes);
        Self::error(rejection.id.clone(), rejection.code.number(), &rejection.message, data)
    }

    /// The bytes of the whole message.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Whether the response has a result.
    pub fn is_result(&self) -> bool {
        self.result.is_some()
    }

    /// The result's JSON text, or the error object's.
    pub fn outcome(&self) -> Result<Bytes, Bytes> {
        match (&self.result, &self.error) {
            (Some(result), _) => Ok(self.raw.slice(result.clone())),
            (None, error) => Err(self.raw.slice(error.clone().unwrap_or_default())),
        }
    }

    /// The same response with another id; every other byte stays.
    pub fn with_id(&self, id: RequestId) -> Self {
        let Some(id_at) = &self.id_at else {
            // Only a response with an error may have no id.
            return Self::raw_error(Some(id), &self.outcome().unwrap_or_else(|error| error));
        };
        let (raw, id_at, shift) = splice(&self.raw, id_at, id.to_json().as_bytes());
        Self {
            id: Some(id),
            raw,
            id_at: Some(id_at),
            result: self.result.clone().map(|span| shift.apply(span)),
            error: self.error.clone().map(|span| shift.apply(span)),
            is_failure: self.is_failure,
        }
    }

    /// The same response with another result. A response with an error stays unchanged.
    pub fn with_result(&self, result: &[u8]) -> Self {
        let Some(span) = &self.result else { return self.clone() };
        let (raw, result, shift) = splice(&self.raw, span, result);
        Self {
            id: self.id.clone(),
            raw,
            id_at: self.id_at.clone().map(|span| shift.apply(span)),
            result: Some(result),
            error: None,
            is_failure: false,
        }
    }
}

impl From<Request> for Message {
    fn from(request: Request) -> Self {
        Self::Request(request)
    }
}

impl From<Notification> for Message {
    fn from(notification: Notification) -> Self {
        Self::Notification(notification)
    }
}

impl From<Response> for Message {
    fn from(response: Response) -> Self {
        Self::Response(response)
    }
}

fn put(raw: &mut BytesMut, part: &[u8]) -> Span {
    let start = raw.len();
    raw.put_slice(part);
    start..raw.len()
}

fn put_method(raw: &mut BytesMut, method: &Method, params: Option<&[u8]>) -> Option<Span> {
    raw.put_slice(b",\"method\":");
    raw.put_slice(serde_json::to_string(method.as_str()).unwrap_or_default().as_bytes());
    let params = params.map(|params| {
        raw.put_slice(b",\"params\":");
        put(raw, params)
    });
    raw.put_u8(b'}');
    params
}

/// Moves spans after the length of a part before them has changed.
struct Shift {
    from: usize,
    by: isize,
}

impl Shift {
    fn apply(&self, span: Span) -> Span {
        if span.start < self.from {
            return span;
        }
        span.start.saturating_add_signed(self.by)..span.end.saturating_add_signed(self.by)
    }
}

/// Replaces the bytes of `raw` at `span`.
fn splice(raw: &Bytes, span: &Span, with: &[u8]) -> (Bytes, Span, Shift) {
    let mut spliced = BytesMut::with_capacity(raw.len() - span.len() + with.len());
    spliced.put_slice(&raw[..span.start]);
    let new_span = put(&mut spliced, with);
    spliced.put_slice(&raw[span.end..]);
    let shift = Shift { from: span.end, by: with.len() as isize - span.len() as isize };
    (spliced.freeze(), new_span, shift)
}
