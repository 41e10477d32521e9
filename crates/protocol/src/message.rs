//! JSON-RPC 2.0 envelopes over raw JSON: payloads pass through byte for byte.
//!
//! A parsed message keeps the bytes it came as and knows where its parts lie in
//! them, so that cloning one, or handing on its parameters, copies nothing.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::raw::{Object, may_hold, span_in, with_member};
use crate::{ErrorCode, Method, ProgressToken, Rejection, RequestId};

/// Bounds of what [`parse`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Deepest nesting of arrays and objects; deeper text is refused with -32600.
    pub depth_max: usize,
    /// Most members of a batch; a longer one is refused whole with -32600.
    pub batch_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth_max: 128, batch_max: 100 }
    }
}

/// Longest id that is taken, as JSON text: ids are kept for as long as a session may be
/// asked about them, so a longer one is refused with -32600.
const ID_BYTES_MAX: usize = 1024;

/// What one HTTP body or one stdio line holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// A single message.
    One(Message),
    /// A JSON-RPC batch, never empty; members that are not messages are answered one by one.
    Batch(Vec<Result<Message, Rejection>>),
}

/// One JSON-RPC message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Wants an answer.
    Request(Request),
    /// Wants none.
    Notification(Notification),
    /// Is one.
    Response(Response),
}

/// A message that wants exactly one answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Unique among the requestor's requests in flight.
    pub id: RequestId,
    /// What is asked.
    pub method: Method,
    raw: Bytes,
    id_at: Span,
    params: Option<Span>,
}

/// A message that is never answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Notification {
    /// What is told.
    pub method: Method,
    raw: Bytes,
    params: Option<Span>,
}

/// The last word on a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The request's id; absent where the other side could not read it (RPC-06).
    pub id: Option<RequestId>,
    raw: Bytes,
    id_at: Option<Span>,
    result: Option<Span>,
    error: Option<Span>,
}

type Span = Range<usize>;

/// Reads a body: UTF-8, JSON, JSON-RPC 2.0, in that order (RPC-01, RPC-02, RPC-06, BAT-05).
pub fn parse(raw: Bytes, limits: &Limits) -> Result<Body, Rejection> {
    let text = std::str::from_utf8(&raw).map_err(|_| {
        Rejection::new(ErrorCode::ParseError, "the body is not UTF-8; send JSON encoded as UTF-8")
    })?;
    if deeper_than(&raw, limits.depth_max) {
        return Err(Rejection::new(
            ErrorCode::InvalidRequest,
            format!("the message is nested deeper than {} levels", limits.depth_max),
        ));
    }
    if text.trim_start().starts_with('[') {
        parse_batch(&raw, text, limits)
    } else {
        parse_one(&raw, 0, raw.len()).map(Body::One)
    }
}

fn parse_batch(raw: &Bytes, text: &str, limits: &Limits) -> Result<Body, Rejection> {
    let members: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| not_json(&error))?;
    if members.is_empty() {
        return Err(Rejection::new(ErrorCode::InvalidRequest, "the batch is empty"));
    }
    if members.len() > limits.batch_max {
        return Err(Rejection::new(
            ErrorCode::InvalidRequest,
            format!(
                "the batch has {} members; at most {} are taken",
                members.len(),
                limits.batch_max
            ),
        ));
    }
    let parse_member = |member: &&RawValue| {
        let span = span_in(raw, member.get());
        parse_one(raw, span.start, span.end)
    };
    Ok(Body::Batch(members.iter().map(parse_member).collect()))
}

/// The envelope. Duplicate members are an error, so what one reader sees every reader sees.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Keeps `null` apart from absence.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

fn parse_one(whole: &Bytes, start: usize, end: usize) -> Result<Message, Rejection> {
    let raw = whole.slice(start..end);
    let text = std::str::from_utf8(&raw)
        .map_err(|_| Rejection::new(ErrorCode::ParseError, "the body is not UTF-8"))?;
    // A struct would be read from an array's elements too, member by member.
    if text.starts_with('[') {
        return Err(invalid("a member of a batch must be an object"));
    }
    let envelope: Envelope<'_> = serde_json::from_str(text).map_err(|error| not_json(&error))?;
    let at = |value: &RawValue| span_in(&raw, value.get());

    let id = match envelope.id.map(RawValue::get) {
        None => None,
        // An error about a request whose id could not be read (JSON-RPC 2.0 section 5).
        Some("null") if envelope.method.is_none() && envelope.error.is_some() => None,
        Some(json) if json.len() > ID_BYTES_MAX => {
            return Err(invalid(&format!("`id` is longer than {ID_BYTES_MAX} bytes")));
        }
        Some(json) => Some(RequestId::from_json(json).ok_or_else(|| {
            invalid("`id` must be a string or an integer of 64 bits, and not null")
        })?),
    };
    let refuse = |code, message: &str| Err(Rejection::new(code, message).of(id.clone()));
    if envelope.jsonrpc.map(RawValue::get) != Some("\"2.0\"") {
        return refuse(ErrorCode::InvalidRequest, "`jsonrpc` must be \"2.0\"");
    }
    let method = match envelope.method.map(|method| string_in(method.get())) {
        Some(None) => return refuse(ErrorCode::InvalidRequest, "`method` must be a string"),
        method => method.flatten(),
    };
    let params = envelope.params.map(at);
    if envelope.params.is_some_and(|params| !params.get().starts_with('{')) {
        return refuse(ErrorCode::InvalidParams, "`params` must be an object");
    }
    let (result, error) = (envelope.result.map(at), envelope.error.map(at));
    let id_at = envelope.id.map(at);
    match (method, id) {
        (Some(_), id) if result.is_some() || error.is_some() => {
            Err(invalid("a message has either `method` or one of `result` and `error`").of(id))
        }
        (Some(method), Some(id)) => Ok(Message::Request(Request {
            method: Method::from(&*method),
            id,
            id_at: id_at.unwrap_or_default(),
            params,
            raw,
        })),
        (Some(method), None) => {
            Ok(Message::Notification(Notification { method: Method::from(&*method), params, raw }))
        }
        (None, id) if result.is_some() == error.is_some() => {
            Err(invalid("a message has `method`, or exactly one of `result` and `error`").of(id))
        }
        (None, None) if result.is_some() => Err(invalid("a result needs the `id` of its request")),
        (None, id) => {
            if envelope.error.is_some_and(|error| !is_error_object(error.get())) {
                return Err(
                    invalid("`error` needs an integer `code` and a string `message`").of(id)
                );
            }
            Ok(Message::Response(Response { id, id_at, result, error, raw }))
        }
    }
}

/// The string that `json` is, copied only where it has escapes.
fn string_in(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(json).ok().map(Cow::Owned)
}

fn is_error_object(json: &str) -> bool {
    #[derive(Deserialize)]
    struct ErrorObject<'a> {
        #[serde(rename = "code")]
        _code: i64,
        #[serde(borrow, rename = "message")]
        _message: Cow<'a, str>,
    }
    json.starts_with('{') && serde_json::from_str::<ErrorObject<'_>>(json).is_ok()
}

fn invalid(message: &str) -> Rejection {
    Rejection::new(ErrorCode::InvalidRequest, message)
}

/// Never quotes the text: it may hold secrets.
fn not_json(error: &serde_json::Error) -> Rejection {
    if error.is_data() {
        return invalid("the body is JSON, but not a JSON-RPC 2.0 message");
    }
    Rejection::new(
        ErrorCode::ParseError,
        format!("the body is not JSON (line {}, column {})", error.line(), error.column()),
    )
}

/// Is `json` nested deeper than `levels`? A text too short to be is not looked at.
fn deeper_than(json: &[u8], levels: usize) -> bool {
    if json.len() <= levels * 2 {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'[' | b'{') => depth += 1,
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > levels {
            return true;
        }
    }
    false
}

impl Message {
    /// Reads one message; a batch is refused.
    pub fn parse(raw: Bytes) -> Result<Self, Rejection> {
        match parse(raw, &Limits::default())? {
            Body::One(message) => Ok(message),
            Body::Batch(_) => Err(invalid("a batch where a single message was expected")),
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

    /// The message on one line, as stdio and SSE need it. A raw line break can only
    /// stand between tokens, so a space may take its place.
    pub fn line(&self) -> Bytes {
        one_line(self.raw())
    }
}

/// `json` without raw line breaks; the same bytes where it has none.
fn one_line(json: &Bytes) -> Bytes {
    if memchr::memchr2(b'\n', b'\r', json).is_none() {
        return json.clone();
    }
    json.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }).collect()
}

impl Request {
    /// A request of our own. `params` is JSON text.
    pub fn new(id: RequestId, method: Method, params: Option<&[u8]>) -> Self {
        let mut raw = BytesMut::new();
        raw.put_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
        let id_at = put(&mut raw, id.to_json().as_bytes());
        let params = put_method(&mut raw, &method, params);
        Self { id, method, raw: raw.freeze(), id_at, params }
    }

    /// The bytes of the whole message.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The parameters' JSON text.
    pub fn params(&self) -> Option<Bytes> {
        self.params.clone().map(|span| self.raw.slice(span))
    }

    /// The same request under another id; nothing else changes by a byte.
    pub fn with_id(&self, id: RequestId) -> Self {
        let (raw, id_at, shift) = splice(&self.raw, &self.id_at, id.to_json().as_bytes());
        let params = self.params.clone().map(|span| shift.apply(span));
        Self { id, method: self.method.clone(), raw, id_at, params }
    }

    /// The same request with other parameters.
    pub fn with_params(&self, params: &[u8]) -> Self {
        let Some(span) = &self.params else {
            return Self::new(self.id.clone(), self.method.clone(), Some(params));
        };
        let (raw, params, shift) = splice(&self.raw, span, params);
        let id_at = shift.apply(self.id_at.clone());
        Self { id: self.id.clone(), method: self.method.clone(), raw, id_at, params: Some(params) }
    }

    /// `params._meta.progressToken`, where there is one (PRG-01).
    pub fn progress_token(&self) -> Option<ProgressToken> {
        let params = &self.raw[self.params.clone()?];
        // Most requests have none.
        if !may_hold(params, "progressToken") {
            return None;
        }
        Object::read(params)?.object("_meta")?.read_as("progressToken")
    }

    /// The same request with another `params._meta.progressToken`; one without a token
    /// stays as it is.
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
    /// A notification of our own. `params` is JSON text.
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
    /// A result. `result` is JSON text.
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
        }
    }

    /// An error; without an id the member is left out (RPC-06). `data` is JSON text.
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

    /// An error whose error object is given as JSON text.
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
        Self { id, raw: raw.freeze(), id_at, result: None, error: Some(error) }
    }

    /// The answer to a message that was rejected.
    pub fn rejecting(rejection: &Rejection) -> Self {
        Self::error(rejection.id.clone(), rejection.code.number(), &rejection.message, None)
    }

    /// The bytes of the whole message.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Did the request succeed?
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

    /// The same response to another id; nothing else changes by a byte.
    pub fn with_id(&self, id: RequestId) -> Self {
        let Some(id_at) = &self.id_at else {
            return match self.outcome() {
                Ok(result) => Self::result(id, &result),
                Err(error) => Self::raw_error(Some(id), &error),
            };
        };
        let (raw, id_at, shift) = splice(&self.raw, id_at, id.to_json().as_bytes());
        Self {
            id: Some(id),
            raw,
            id_at: Some(id_at),
            result: self.result.clone().map(|span| shift.apply(span)),
            error: self.error.clone().map(|span| shift.apply(span)),
        }
    }

    /// The same response with another result.
    pub fn with_result(&self, result: &[u8]) -> Self {
        match (&self.id, &self.result) {
            (Some(id), Some(_)) => Self::result(id.clone(), result),
            _ => self.clone(),
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

/// How spans move when a part before them changes its length.
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

/// `raw` with what lies at `span` replaced.
fn splice(raw: &Bytes, span: &Span, with: &[u8]) -> (Bytes, Span, Shift) {
    let mut spliced = BytesMut::with_capacity(raw.len() - span.len() + with.len());
    spliced.put_slice(&raw[..span.start]);
    let new_span = put(&mut spliced, with);
    spliced.put_slice(&raw[span.end..]);
    let shift = Shift { from: span.end, by: with.len() as isize - span.len() as isize };
    (spliced.freeze(), new_span, shift)
}
