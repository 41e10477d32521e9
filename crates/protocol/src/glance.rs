//! What a log says of a message, read without a parse of its payload.
//!
//! A message that was parsed before, or that a session made, is read only up to the member that
//! decides: usually its first 40 bytes. Text that is not JSON yields `None` or a wrong answer, and
//! never a panic.

use std::borrow::Cow;
use std::sync::LazyLock;

use memchr::{memchr2, memmem};

use crate::raw::pick;
use crate::{Method, Request, payload};

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request or a notification.
    Call,
    /// A response with a result.
    Result,
    /// A response with an error.
    Error,
}

/// The kind of one message.
pub fn kind_of(message: &[u8]) -> Option<Kind> {
    let mut members = Members::of(message)?;
    while let Some(key) = members.next_key() {
        match key {
            b"method" => return Some(Kind::Call),
            b"result" => return Some(Kind::Result),
            b"error" => return Some(Kind::Error),
            _ => members.skip_value()?,
        }
    }
    None
}

/// So much of each end of a long result is read for `isError`: servers write it before or behind the
/// content, which may be long.
const EDGE_BYTES: usize = 1 << 10;

/// Most members `isError` that are looked at behind a long content.
const CANDIDATES_MAX: usize = 8;

/// Does a response have a result with `isError`: is it the error of a tool? Of a long result only the
/// two ends are read, so that this takes the same time for any length; an `isError` in the middle
/// is not found.
pub fn is_tool_error(response: &[u8]) -> bool {
    let head = &response[..response.len().min(EDGE_BYTES)];
    // Within a string the quotes would be escaped, so each hit is a member of some object.
    if IS_ERROR.find(head).is_some() && result_is_error(head) {
        return true;
    }
    let tail = &response[response.len().saturating_sub(EDGE_BYTES)..];
    response.len() > EDGE_BYTES
        && IS_ERROR.find_iter(tail).take(CANDIDATES_MAX).any(|at| ends_as_result(&tail[at..]))
}

/// The key with its quotes. Made once: to make one takes longer than to search with it.
static IS_ERROR: LazyLock<memmem::Finder<'_>> =
    LazyLock::new(|| memmem::Finder::new(b"\"isError\""));

/// Does the result have the member, as far as this beginning of a response goes?
fn result_is_error(head: &[u8]) -> bool {
    let Some(mut members) = Members::of(head) else { return false };
    while let Some(key) = members.next_key() {
        if key == b"result" {
            let Some(mut result) = Members::of(members.rest()) else { return false };
            while let Some(key) = result.next_key() {
                if key == b"isError" {
                    return result.rest().starts_with(b"true");
                }
                if result.skip_value().is_none() {
                    return false;
                }
            }
            return false;
        }
        if members.skip_value().is_none() {
            return false;
        }
    }
    false
}

/// Is this end of a response, which begins with the member, the end of its result: does only one
/// object end behind the one with the member?
fn ends_as_result(tail: &[u8]) -> bool {
    let mut members = Members { json: tail, at: 0 };
    let is_true = members.next_key().is_some() && members.rest().starts_with(b"true");
    is_true && members.skip_object_end() && members.skip_object_end() && members.rest().is_empty()
}

/// The code of a response with an error. Parses the whole message.
pub fn error_code(message: &[u8]) -> Option<i32> {
    let [error] = pick(message, ["error"])?;
    let [code] = pick(error?.as_bytes(), ["code"])?;
    code?.parse().ok()
}

impl Request {
    /// The name of the tool that a `tools/call` names. If its parameters have several members
    /// `name`, the first one: a server may use another.
    pub fn tool_name(&self) -> Option<Cow<'_, str>> {
        if self.method != Method::ToolsCall {
            return None;
        }
        name_in(self.params_text()?)
    }
}

fn name_in(params: &[u8]) -> Option<Cow<'_, str>> {
    let mut members = Members::of(params)?;
    while let Some(key) = members.next_key() {
        if key == b"name" {
            let name = members.rest();
            let end = end_of_string(name)?;
            let name = std::str::from_utf8(name.get(1..end - 1)?).ok()?;
            return if name.contains('\\') {
                payload::name_of(params).map(Cow::Owned)
            } else {
                Some(Cow::Borrowed(name))
            };
        }
        if key.contains(&b'\\') {
            return payload::name_of(params).map(Cow::Owned);
        }
        members.skip_value()?;
    }
    None
}

/// The members of one object, in their order.
pub(crate) struct Members<'a> {
    json: &'a [u8],
    at: usize,
}

impl<'a> Members<'a> {
    pub(crate) fn of(json: &'a [u8]) -> Option<Self> {
        let mut members = Self { json, at: 0 };
        members.skip_blanks();
        (members.json.get(members.at) == Some(&b'{')).then(|| {
            members.at += 1;
            members
        })
    }

    /// The key of the next member, as written; the position is then that of its value.
    pub(crate) fn next_key(&mut self) -> Option<&'a [u8]> {
        self.skip_blanks();
        if self.json.get(self.at) == Some(&b',') {
            self.at += 1;
            self.skip_blanks();
        }
        let end = end_of_string(self.rest())?;
        let key = self.json.get(self.at + 1..self.at + end - 1)?;
        self.at += end;
        self.skip_blanks();
        if self.json.get(self.at) != Some(&b':') {
            return None;
        }
        self.at += 1;
        self.skip_blanks();
        Some(key)
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.json.get(self.at..).unwrap_or_default()
    }

    /// Skips a value of this length, which the caller has read.
    pub(crate) fn skip_bytes(&mut self, length: usize) {
        self.at += length;
    }

    /// The text at the position, if it is one, which is skipped.
    pub(crate) fn take_text(&mut self) -> Option<Cow<'a, str>> {
        let rest = self.rest();
        let quoted = rest.get(..end_of_string(rest)?)?;
        self.at += quoted.len();
        let quoted = std::str::from_utf8(quoted).ok()?;
        match quoted.contains('\\') {
            true => serde_json::from_str(quoted).ok().map(Cow::Owned),
            false => Some(Cow::Borrowed(quoted.get(1..quoted.len() - 1)?)),
        }
    }

    fn skip_blanks(&mut self) {
        let blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.at += self.rest().iter().take_while(blank).count();
    }

    /// Skips the value or key at the position, the further members of its object, and the end of the
    /// object. False if the text ends before, or is not such an object.
    fn skip_object_end(&mut self) -> bool {
        loop {
            if self.json.get(self.at) != Some(&b'}') && self.skip_value().is_none() {
                return false;
            }
            self.skip_blanks();
            match self.json.get(self.at) {
                Some(b'}') => {
                    self.at += 1;
                    self.skip_blanks();
                    return true;
                }
                Some(b',' | b':') => {
                    self.at += 1;
                    self.skip_blanks();
                }
                _ => return false,
            }
        }
    }

    /// Skips the value; `None` if the text ends within it.
    pub(crate) fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.json.get(self.at)? {
                b'"' => self.at += end_of_string(self.rest())?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                // The end of a scalar, which the caller reads.
                b'}' | b']' => return Some(()),
                b',' if depth == 0 => return Some(()),
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

/// The bytes of a string that are read before a search begins: most names are shorter than what the
/// search costs to begin.
const SHORT_BYTES: usize = 24;

/// The length of the string with which the text begins, with both quotes.
pub(crate) fn end_of_string(text: &[u8]) -> Option<usize> {
    if text.first() != Some(&b'"') {
        return None;
    }
    let mut at = 1;
    while at < SHORT_BYTES
        && let Some(word) = text.get(at..).and_then(<[u8]>::first_chunk)
    {
        match first_mark(u64::from_le_bytes(*word)) {
            None => at += word.len(),
            Some(mark) if text[at + mark] == b'"' => return Some(at + mark + 1),
            Some(_) => break,
        }
    }
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The position of the first quote or backslash among eight bytes, the first byte in the lowest bits.
fn first_mark(word: u64) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    // The highest bit of each byte that is 0. A byte above such a one can be taken for 0 as well, and
    // only the first one counts.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7);
    let is = |byte: u8| zeros(word ^ (ONES * u64::from(byte)));
    let marks = is(b'"') | is(b'\\');
    (marks != 0).then(|| marks.trailing_zeros() as usize / 8)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::{Message, RequestId, Response};

    #[test]
    fn the_kind_of_a_message_is_that_of_its_members_in_any_order() {
        let check = |text: &str, kind| assert_eq!(kind_of(text.as_bytes()), kind, "{text}");
        check(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, Some(Kind::Result));
        check(r#" { "id" : "a\"b" , "error" : {"code":1} }"#, Some(Kind::Error));
        check(r#"{"params":{"result":[{"a":"]}"}],"error":1},"method":"x"}"#, Some(Kind::Call));
        check(r#"{"_meta":"}","id":-1.5e3,"result":1}"#, Some(Kind::Result));
        for nothing in ["", "[]", "{", "{}", r#"{"id":1"#, r#"{"id"#, r#"{"id":"\"#, "{,", "{1:2}"]
        {
            check(nothing, None);
        }
    }

    #[test]
    fn the_code_of_an_error_is_read() {
        let error = Response::error(Some(RequestId::from(1)), -32602, "no", None);
        assert_eq!(error_code(error.raw()), Some(-32602));
        assert_eq!(error_code(b"{}"), None);
    }

    #[test]
    fn the_error_of_a_tool_is_a_member_of_the_result_only() {
        let check =
            |text: &str, is_error| assert_eq!(is_tool_error(text.as_bytes()), is_error, "{text}");
        let long = "x".repeat(3 * EDGE_BYTES);
        for content in ["", "x", &long] {
            let content = format!(r#"[{{"type":"text","text":"{content}"}}]"#);
            for blank in ["", " "] {
                let error = format!(r#""isError":{blank}true"#);
                let quoted = error.replace('"', "\\\"");
                let in_result =
                    |result: &str| format!(r#"{{"jsonrpc":"2.0","result":{result},"id":1}}"#);
                check(&in_result(&format!(r#"{{"content":{content},{error}}}"#)), true);
                check(&in_result(&format!(r#"{{{error},{blank}"content":{content}}}"#)), true);
                let nested = format!(r#"{{"a":{{{error}}}}}"#);
                check(&in_result(&format!(r#"{{"s":{nested},"content":{content}}}"#)), false);
                check(&in_result(&format!(r#"{{"content":{content},"s":{nested}}}"#)), false);
                let both = format!(r#"{{"content":{content},{error},"s":{nested}}}"#);
                check(&in_result(&both), true);
                check(&in_result(&format!(r#"{{"content":{content},"s":"{quoted}"}}"#)), false);
                check(
                    &in_result(&format!(r#"{{"content":{content},"isError":{blank}false}}"#)),
                    false,
                );
                check(&in_result(&format!(r#"{{"content":{content}}}"#)), false);
                check(&format!(r#"{{"id":1,{error},"content":{content}}}"#), false);
            }
        }
        for nothing in ["", "{", r#""isError":true"#, r#"{"result":true,"isError":true}"#] {
            check(nothing, false);
        }
    }

    #[test]
    fn the_tool_of_a_call_is_the_name_in_its_parameters() {
        let name = |params: &str| {
            let call = Request::new(1.into(), Method::ToolsCall, Some(params.as_bytes()));
            call.tool_name().map(Cow::into_owned)
        };
        assert_eq!(name(r#"{"name":"echo","arguments":{}}"#).as_deref(), Some("echo"));
        assert_eq!(name(r#"{"arguments":{"name":"a"}, "name" : "b"}"#).as_deref(), Some("b"));
        assert_eq!(name(r#"{"name":"n\u00e4h"}"#).as_deref(), Some("näh"));
        assert_eq!(name(r#"{"n\u0061me":"hidden"}"#).as_deref(), Some("hidden"));
        for nothing in ["{}", "[]", r#"{"name":7}"#] {
            assert_eq!(name(nothing), None, "{nothing}");
        }
        let list = Request::new(1.into(), Method::ToolsList, Some(br#"{"name":"x"}"#));
        assert_eq!(list.tool_name(), None);
    }

    proptest! {
        #[test]
        fn a_string_ends_with_its_first_quote_that_is_not_escaped(
            text in r#"["\\a!#\[\]ä¢Ü]{0,40}"#, more in "[x]{0,30}", at in 0..30_usize,
        ) {
            let text = format!("\"{}{text}", &more[..at.min(more.len())]);
            let mut escaped = false;
            let end = text.bytes().skip(1).position(|byte| {
                let ends = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                ends
            });
            prop_assert_eq!(end_of_string(text.as_bytes()), end.map(|end| end + 2), "{}", text);
        }

        #[test]
        fn no_text_panics(text in r#"[{}\[\],:"\\a1 ]{0,40}"#) {
            let _ = (kind_of(text.as_bytes()), name_in(text.as_bytes()));
            let _ = (is_tool_error(text.as_bytes()), ends_as_result(text.as_bytes()));
        }

        #[test]
        fn a_message_that_can_be_parsed_has_the_kind_of_the_parse(
            id in 0..9_i64, text in r#"[{}\[\],:"\\a1 ]{0,20}"#, is_result: bool,
        ) {
            let text = serde_json::to_string(&text).unwrap();
            let response = if is_result {
                Response::result(id.into(), text.as_bytes())
            } else {
                Response::raw_error(Some(id.into()), format!(r#"{{"code":1,"message":{text}}}"#).as_bytes())
            };
            let parsed = Message::parse(Bytes::clone(response.raw())).unwrap();
            prop_assert!(matches!(parsed, Message::Response(_)));
            let kind = if is_result { Kind::Result } else { Kind::Error };
            prop_assert_eq!(kind_of(response.raw()), Some(kind));
        }
    }
}
