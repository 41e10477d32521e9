//! Server-sent events, written (SSE-12); what reads them is for tests.
//!
//! What is written here is what every client of today was seen to take: a field always
//! with its colon, since one parser ends the stream at a line without; ids only where
//! the client may come back; nothing that could end a line too early, whatever is passed in.

#[cfg(any(test, feature = "sse-decoder"))]
mod decode;

#[cfg(any(test, feature = "sse-decoder"))]
pub use decode::{Decoder, Event, TooLong};

use bytes::{BufMut, BytesMut};

/// A JSON-RPC message. `name` is the event's name: clients take a nameless event for
/// `message`, the one name that those of 2024-11-05 know. `line` is JSON on one line; a
/// raw line break in it can only stand between tokens, and becomes a space.
pub fn message(out: &mut BytesMut, name: Option<&str>, id: Option<&str>, line: &[u8]) {
    out.reserve(line.len() + 64);
    if let Some(name) = name {
        field(out, b"event: ", name.as_bytes());
    }
    if let Some(id) = id {
        identify(out, id);
    }
    field(out, b"data: ", line);
    out.put_u8(b'\n');
}

/// An id without a message, so that the client can come back to this point (SSE-04), and
/// how long it waits before it does (SSE-05). The empty `data:` is needed: most clients
/// ignore an id that stands alone.
pub fn cursor(out: &mut BytesMut, id: &str, retry_ms: u32) {
    identify(out, id);
    field(out, b"retry: ", retry_ms.to_string().as_bytes());
    out.put_slice(b"data:\n\n");
}

/// How long the client waits before it comes back, and nothing else (SSE-05).
pub fn retry(out: &mut BytesMut, retry_ms: u32) {
    field(out, b"retry: ", retry_ms.to_string().as_bytes());
    out.put_u8(b'\n');
}

/// A comment, which clients ignore: keeps the connection alive (SSE-13).
pub fn comment(out: &mut BytesMut, text: &str) {
    field(out, b": ", text.as_bytes());
    out.put_u8(b'\n');
}

/// The first event of an HTTP+SSE stream: where to post messages to (OLD-02).
pub fn endpoint(out: &mut BytesMut, uri: &str) {
    out.put_slice(b"event: endpoint\n");
    field(out, b"data: ", uri.as_bytes());
    out.put_u8(b'\n');
}

/// Leaves out an id that holds a control character: the client cannot resume from that
/// event, but the id cannot inject another event into the stream either.
fn identify(out: &mut BytesMut, id: &str) {
    if !id.bytes().any(|byte| byte.is_ascii_control()) {
        field(out, b"id: ", id.as_bytes());
    }
}

fn field(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    out.put_slice(name);
    let mut rest = value;
    while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
        out.put_slice(&rest[..end]);
        out.put_u8(b' ');
        rest = &rest[end + 1..];
    }
    out.put_slice(rest);
    out.put_u8(b'\n');
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
