//! Encodes server-sent events (SSE-12). The decoder is for tests.
//!
//! The encoding is one that all tested clients parse. Every field has a colon, since one parser
//! ends the stream at a line without. An event has an id only if the client may resume from it.
//! No argument can end a line early.

#[cfg(any(test, feature = "sse-decoder"))]
mod decode;

#[cfg(any(test, feature = "sse-decoder"))]
pub use decode::{Decoder, Event, TooLong};

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memchr2;

/// Writes a JSON-RPC message. `name` is the event's name: an event without one counts as
/// `message`, the only name that clients of 2024-11-05 support. `line` is JSON on one line; a raw
/// line break, which occurs only between tokens, is replaced by a space.
pub fn message(out: &mut BytesMut, name: Option<&str>, id: Option<&str>, line: &[u8]) {
    out.reserve(line.len() + 64);
    begin_message(out, name, id);
    put_line(out, line);
    out.put_slice(END_OF_MESSAGE);
}

/// What follows the text of a message.
pub const END_OF_MESSAGE: &[u8] = b"\n\n";

/// Writes what precedes the text of a message, as [`message`] does. [`part_of_line`] makes the text of its
/// parts.
pub fn begin_message(out: &mut BytesMut, name: Option<&str>, id: Option<&str>) {
    if let Some(name) = name {
        field(out, b"event: ", name.as_bytes());
    }
    if let Some(id) = id {
        identify(out, id);
    }
    out.put_slice(b"data: ");
}

/// A part of the text of a message, without line breaks. It is copied only if it has one.
pub fn part_of_line(part: Bytes) -> Bytes {
    if memchr2(b'\n', b'\r', &part).is_none() {
        return part;
    }
    let mut out = BytesMut::with_capacity(part.len());
    put_line(&mut out, &part);
    out.freeze()
}

/// Writes an id without a message, so that the client can resume from this point (SSE-04), and
/// how long it waits before it reconnects (SSE-05). The empty `data:` is required: most clients
/// ignore an id without data.
pub fn cursor(out: &mut BytesMut, id: &str, retry_ms: u32) {
    identify(out, id);
    field(out, b"retry: ", retry_ms.to_string().as_bytes());
    out.put_slice(b"data:\n\n");
}

/// Writes only how long the client waits before it reconnects (SSE-05).
pub fn retry(out: &mut BytesMut, retry_ms: u32) {
    field(out, b"retry: ", retry_ms.to_string().as_bytes());
    out.put_u8(b'\n');
}

/// Writes a comment, which clients ignore, to keep the connection alive (SSE-13).
pub fn comment(out: &mut BytesMut, text: &str) {
    field(out, b": ", text.as_bytes());
    out.put_u8(b'\n');
}

/// Writes the first event of an HTTP+SSE stream: the URL for POSTs (OLD-02).
pub fn endpoint(out: &mut BytesMut, uri: &str) {
    out.put_slice(b"event: endpoint\n");
    field(out, b"data: ", uri.as_bytes());
    out.put_u8(b'\n');
}

/// Writes an id, unless it contains a control character, which could inject another event into the
/// stream. The client cannot resume from an event without an id.
fn identify(out: &mut BytesMut, id: &str) {
    if !id.bytes().any(|byte| byte.is_ascii_control()) {
        field(out, b"id: ", id.as_bytes());
    }
}

fn field(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.put_slice(name);
    put_line(out, value);
    out.put_u8(b'\n');
}

/// Writes a text with a space in place of each line break.
fn put_line(out: &mut BytesMut, text: &[u8]) {
    let mut rest = text;
    while let Some(end) = memchr2(b'\n', b'\r', rest) {
        out.put_slice(&rest[..end]);
        out.put_u8(b' ');
        rest = &rest[end + 1..];
    }
    out.put_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(write: impl FnOnce(&mut BytesMut), expected: &str) {
        let mut out = BytesMut::new();
        write(&mut out);
        assert_eq!(std::str::from_utf8(&out), Ok(expected));
    }

    // holds: SSE-12
    #[test]
    fn a_message_has_the_fields_it_was_given_and_always_data() {
        check(|out| message(out, None, None, b"{}"), "data: {}\n\n");
        check(|out| message(out, None, Some("3.ab-1"), b"{}"), "id: 3.ab-1\ndata: {}\n\n");
        check(|out| message(out, Some("message"), None, b"{}"), "event: message\ndata: {}\n\n");
        check(
            |out| message(out, Some("message"), Some("1"), b"[1]"),
            "event: message\nid: 1\ndata: [1]\n\n",
        );
    }

    #[test]
    fn a_cursor_is_an_id_a_retry_and_empty_data_with_its_colon() {
        check(|out| cursor(out, "3.ab-0", 2000), "id: 3.ab-0\nretry: 2000\ndata:\n\n");
    }

    #[test]
    fn a_retry_a_comment_and_an_endpoint() {
        check(|out| retry(out, 500), "retry: 500\n\n");
        check(|out| comment(out, "ping"), ": ping\n\n");
        check(|out| endpoint(out, "/t/messages?s=1"), "event: endpoint\ndata: /t/messages?s=1\n\n");
    }

    // holds: SSE-12
    #[test]
    fn nothing_that_is_passed_in_ends_a_line_early() {
        check(|out| message(out, None, None, b"{\r\n \"a\":\n1}"), "data: {   \"a\": 1}\n\n");
        check(|out| message(out, None, Some("1\ndata: x"), b"{}"), "data: {}\n\n");
        check(|out| message(out, Some("a\n\nb"), None, b"{}"), "event: a  b\ndata: {}\n\n");
        check(|out| comment(out, "a\n\ndata: x"), ": a  data: x\n\n");
        check(|out| endpoint(out, "/x\r\n\r\n"), "event: endpoint\ndata: /x    \n\n");
    }
}
