//! Parses untrusted bytes as JSON-RPC messages.
//!
//! Errors never quote the input, which may contain secrets. The parser never recurses.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{Body, Message, Notification, Request, Response};
use crate::raw::span_in;
use crate::{ErrorCode, Method, Rejection, RequestId};

/// The limits of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum nesting of arrays and objects; deeper text is rejected with -32600.
    pub depth_max: usize,
    /// Maximum number of members of a batch; a longer one is rejected as a whole with -32600.
    pub batch_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { depth_max: 128, batch_max: 100 }
    }
}

/// Maximum length of an id as JSON text; a longer one is rejected with -32600.
const ID_BYTES_MAX: usize = RequestId::BYTES_MAX;

/// Parses a body. Checks UTF-8, JSON and JSON-RPC 2.0, in that order (RPC-01, RPC-02, RPC-06,
/// BAT-05).
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
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    if text.starts_with('[') {
        parse_batch(&raw, text, limits)
    } else {
        parse_one(&raw, text).map(Body::One)
    }
}

fn parse_batch(whole: &Bytes, text: &str, limits: &Limits) -> Result<Body, Rejection> {
    let mut json = serde_json::Deserializer::from_str(text);
    let members = Members { members_max: limits.batch_max }
        .deserialize(&mut json)
        .and_then(|members| json.end().map(|()| members))
        .map_err(|error| not_json(&error))?;
    if members.is_empty() {
        return Err(invalid("the batch is empty"));
    }
    if members.len() > limits.batch_max {
        let most = limits.batch_max;
        return Err(invalid(&format!("the batch has more than {most} members; send fewer")));
    }
    Ok(Body::Batch(members.iter().map(|member| parse_one(whole, member.get())).collect()))
}

/// Parses an array, and keeps at most one element more than the limit.
struct Members {
    members_max: usize,
}

impl<'de> DeserializeSeed<'de> for Members {
    type Value = Vec<&'de RawValue>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Members {
    type Value = Vec<&'de RawValue>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while members.len() <= self.members_max {
            let Some(member) = array.next_element()? else { return Ok(members) };
            members.push(member);
        }
        while array.next_element::<IgnoredAny>()?.is_some() {}
        Ok(members)
    }
}

/// The envelope. Duplicate members are an error, so that every parser reads the same values.
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

/// Distinguishes `null` from an absent member.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Parses one message; `text` is a part of `whole`.
fn parse_one(whole: &Bytes, text: &str) -> Result<Message, Rejection> {
    // Without this check, serde would also deserialise the struct from an array.
    if text.starts_with('[') {
        return Err(invalid("a member of a batch must be an object"));
    }
    let envelope: Envelope<'_> = serde_json::from_str(text).map_err(|error| not_json(&error))?;
    let raw = whole.slice(span_in(whole, text));
    let at = |value: &RawValue| span_in(&raw, value.get());

    let id = match envelope.id.map(RawValue::get) {
        None => None,
        // An error about a request whose id could not be parsed (JSON-RPC 2.0 section 5).
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
            trace: None,
            tokens: None,
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
            Ok(Message::Response(Response { id, id_at, result, error, raw, is_failure: false }))
        }
    }
}

/// The string in `json`, copied only if it has escapes.
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

/// The rejection for an error of the JSON parser. Never quotes the text, which may contain secrets.
fn not_json(error: &serde_json::Error) -> Rejection {
    if error.is_data() {
        return invalid("the body is JSON, but not a JSON-RPC 2.0 message");
    }
    Rejection::new(
        ErrorCode::ParseError,
        format!("the body is not JSON (line {}, column {})", error.line(), error.column()),
    )
}

/// Whether `json` is nested deeper than `levels`. Most texts have fewer brackets than that, which
/// a count shows quickly.
fn deeper_than(json: &[u8], levels: usize) -> bool {
    if memchr::memchr2_iter(b'[', b'{', json).nth(levels).is_none() {
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
