//! What a request is about: the tool, prompt or resource that it names, as every parser reads it.
//!
//! A decision about a name holds only if the server reads the same name. Parsers differ in which of two
//! members of one name they take, and some ignore case. So a request that they could read in two ways
//! names nothing.

use std::borrow::Cow;

use crate::raw::Object;
use crate::{Message, Method, Request};

/// What a message is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// A tool, by its name.
    Tool(Cow<'a, str>),
    /// A prompt, by its name.
    Prompt(Cow<'a, str>),
    /// A resource, by its URI or the template of its URI.
    Resource(Cow<'a, str>),
    /// A method that is none of MCP's.
    Method(&'a str),
    /// Nothing of these: a method of MCP that names none of them, or a response.
    Nothing,
}

/// Most members of an object that is looked at: a message, its parameters, or a reference in these. Each is
/// compared with each other one.
const MEMBERS_MAX: usize = 256;

/// Longest name or URI as JSON text. It is compared with all patterns of a tenant, a URI in each of its
/// forms.
const NAME_BYTES_MAX: usize = 16 << 10;

/// A message that parsers could read in two ways, or that is too long to be compared with rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the message names what it is about twice, or not at all, or has over 256 members or 16 KiB of a name; \
     send each member once"
)]
pub struct Ambiguous;

/// What a message is about.
pub fn named<'a>(message: &'a Message) -> Result<Named<'a>, Ambiguous> {
    match message {
        Message::Request(request) => named_in_request(request),
        Message::Notification(notification) => named_in(&notification.method, notification.raw()),
        Message::Response(response) => {
            let envelope = Object::read(response.raw()).filter(is_clear).ok_or(Ambiguous)?;
            // A server that ignores case could take it for a request.
            let is_both = ["method", "params"].iter().any(|key| envelope.get(key).is_some());
            if is_both { Err(Ambiguous) } else { Ok(Named::Nothing) }
        }
    }
}

/// What a request is about.
pub fn named_in_request(request: &Request) -> Result<Named<'_>, Ambiguous> {
    named_in(&request.method, request.raw())
}

fn named_in<'a>(method: &'a Method, raw: &'a [u8]) -> Result<Named<'a>, Ambiguous> {
    let envelope = Object::read(raw).filter(is_clear).ok_or(Ambiguous)?;
    let (key, of): (_, fn(Cow<'a, str>) -> Named<'a>) = match method {
        Method::ToolsCall => ("name", Named::Tool),
        Method::PromptsGet => ("name", Named::Prompt),
        Method::ResourcesRead | Method::Subscribe | Method::Unsubscribe => ("uri", Named::Resource),
        Method::Complete => return completed(&envelope),
        Method::Other(method) => return Ok(Named::Method(method)),
        _ => return Ok(Named::Nothing),
    };
    let params = envelope.get("params").ok_or(Ambiguous)?;
    let params = clear(params)?;
    text(&params, key).map(of).ok_or(Ambiguous)
}

/// The prompt or the resource whose argument is completed.
fn completed<'a>(envelope: &Object<'a>) -> Result<Named<'a>, Ambiguous> {
    let params = clear(envelope.get("params").ok_or(Ambiguous)?)?;
    let reference = clear(params.get("ref").ok_or(Ambiguous)?)?;
    match (text(&reference, "name"), text(&reference, "uri")) {
        (Some(name), None) => Ok(Named::Prompt(name)),
        (None, Some(uri)) => Ok(Named::Resource(uri)),
        _ => Err(Ambiguous),
    }
}

fn clear(json: &str) -> Result<Object<'_>, Ambiguous> {
    Object::read(json.as_bytes()).filter(is_clear).ok_or(Ambiguous)
}

/// The members that decide something. Some parsers take one in another case for them.
const DECIDING: [&str; 9] =
    ["jsonrpc", "id", "method", "params", "result", "error", "name", "uri", "ref"];

/// Whether each parser finds the same members: no two names differ in case at most, and each that
/// decides is in its own case. Names beyond visible ASCII are refused: parsers that ignore case take
/// some of them for ASCII letters.
fn is_clear(object: &Object<'_>) -> bool {
    if object.members.len() > MEMBERS_MAX {
        return false;
    }
    let names: Vec<&str> = object.members.iter().map(|(name, _)| &**name).collect();
    names.iter().enumerate().all(|(at, name)| {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_graphic());
        let is_alone = !names[..at].iter().any(|other| other.eq_ignore_ascii_case(name));
        let is_other = |known: &&str| known.eq_ignore_ascii_case(name) && known != name;
        is_plain && is_alone && !DECIDING.iter().any(is_other)
    })
}

fn text<'a>(object: &Object<'a>, key: &str) -> Option<Cow<'a, str>> {
    let value = object.get(key).filter(|value| value.len() <= NAME_BYTES_MAX)?;
    match value.strip_prefix('"')?.strip_suffix('"')? {
        plain if !plain.contains('\\') => Some(Cow::Borrowed(plain)),
        _ => serde_json::from_str(value).ok().map(Cow::Owned),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Body, Limits, parse};

    fn message(text: &str) -> Message {
        match parse(Bytes::from(text.to_owned()), &Limits::default()) {
            Ok(Body::One(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    fn of(method: &str, params: &str) -> Message {
        message(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#))
    }

    #[test]
    fn each_request_names_what_it_is_about() {
        let name = |text: &'static str| Cow::Borrowed(text);
        for (method, params, expected) in [
            ("tools/call", r#"{"arguments":{"name":"b"},"name":"a"}"#, Named::Tool(name("a"))),
            ("tools/call", r#"{"n\u0061me":"\u0061"}"#, Named::Tool(name("a"))),
            ("prompts/get", r#"{"name":"a"}"#, Named::Prompt(name("a"))),
            ("resources/read", r#"{"uri":"x:/a"}"#, Named::Resource(name("x:/a"))),
            ("resources/subscribe", r#"{"uri":"x:/a"}"#, Named::Resource(name("x:/a"))),
            ("resources/unsubscribe", r#"{"uri":"x:/a"}"#, Named::Resource(name("x:/a"))),
            (
                "completion/complete",
                r#"{"ref":{"type":"ref/prompt","name":"a"},"argument":{"name":"b"}}"#,
                Named::Prompt(name("a")),
            ),
            (
                "completion/complete",
                r#"{"ref":{"type":"ref/resource","uri":"x:/{a}"}}"#,
                Named::Resource(name("x:/{a}")),
            ),
            ("tools/list", "{}", Named::Nothing),
            ("x/own", r#"{"name":"a"}"#, Named::Method("x/own")),
        ] {
            assert_eq!(named(&of(method, params)), Ok(expected), "{method} {params}");
        }
        let response = message(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert_eq!(named(&response), Ok(Named::Nothing));
    }

    #[test]
    fn what_parsers_could_read_in_two_ways_names_nothing() {
        for params in [
            r#"{"name":"a","name":"b"}"#,
            r#"{"name":"a","n\u0061me":"b"}"#,
            r#"{"name":"a","NAME":"b"}"#,
            r#"{"Name":"a"}"#,
            "{\"name\":\"a\",\"nam\u{65}\\u0000\":\"b\"}",
            "{\"name\":\"a\",\"\u{17f}\":\"b\"}",
            r#"{"name":"a","x":1,"X":2}"#,
            r#"{"name":"a","URI":"x:/b"}"#,
            r#"{"name":["a"]}"#,
            r#"{"name":7}"#,
            "{}",
        ] {
            assert_eq!(named(&of("tools/call", params)), Err(Ambiguous), "{params}");
        }
        // Two members of exactly one name in the envelope are no message at all.
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","METHOD":"tools/call","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#,
            // Go takes the long s for an s.
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"a\"},\"param\u{17f}\":{\"name\":\"b\"}}",
            r#"{"jsonrpc":"2.0","id":1,"result":{},"Method":"tools/call","params":{"name":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""},"params":{"name":"b"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{},"Method":"tools/list"}"#,
            // A notification here, and a request for parsers that ignore case.
            r#"{"jsonrpc":"2.0","Id":1,"method":"tools/list"}"#,
        ] {
            assert_eq!(named(&message(text)), Err(Ambiguous), "{text}");
        }
        for both in [r#"{"name":"a","uri":"x:/a"}"#, r#"{"name":"a","URI":"x:/a"}"#] {
            let params = format!(r#"{{"ref":{both}}}"#);
            assert_eq!(named(&of("completion/complete", &params)), Err(Ambiguous), "{both}");
        }
    }

    #[test]
    fn what_would_take_long_to_compare_names_nothing() {
        let with_members = |count: usize| {
            let more: String = (1..count).map(|n| format!(",\"{n}\":1")).collect();
            (format!(r#"{{"name":"a"{more}}}"#), more)
        };
        let (fits, too_many) = (with_members(MEMBERS_MAX), with_members(MEMBERS_MAX + 1));
        assert!(named(&of("tools/call", &fits.0)).is_ok());
        assert_eq!(named(&of("tools/call", &too_many.0)), Err(Ambiguous));
        let reference = format!(r#"{{"ref":{}}}"#, too_many.0);
        assert_eq!(named(&of("completion/complete", &reference)), Err(Ambiguous));
        let envelope = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/list"{}}}"#, too_many.1);
        assert_eq!(named(&message(&envelope)), Err(Ambiguous));
        // Arguments are not looked at.
        let arguments = format!(r#"{{"name":"a","arguments":{}}}"#, too_many.0);
        assert!(named(&of("tools/call", &arguments)).is_ok());
        let named_at =
            |length: usize| of("tools/call", &format!(r#"{{"name":"{}"}}"#, "a".repeat(length)));
        assert!(named(&named_at(NAME_BYTES_MAX - 2)).is_ok());
        assert_eq!(named(&named_at(NAME_BYTES_MAX - 1)), Err(Ambiguous));
    }
}
