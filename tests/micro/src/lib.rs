//! The smallest pieces of work on a call's way that need no socket, no clock and no
//! thread: reading envelopes, server-sent events, and a session's steps.
//!
//! The program `instructions` repeats one under a counter, the benchmark `pure` times
//! them all, so that a count and a time of one name are of the same work.

mod call;

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use protocol::sse;

use crate::call::Calls;

/// A call of a tool, as clients send it.
const CALL: &[u8] = br#"{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello there"},"_meta":{"progressToken":17}}}"#;
/// What a tool says while it works.
const PROGRESS: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":17,"progress":3,"total":10,"message":"a third"}}"#;
/// An event id as sessions write them.
const EVENT_ID: &str = "1042.00c0ffee00c0ffee-1044";
/// Longest event that is read, in bytes; far above those here.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// One piece of work that can be repeated.
pub struct Work {
    /// What it is called: its area, and what is done there.
    pub name: &'static str,
    /// Makes what each repetition needs; what it gives does the work once a call.
    pub prepare: fn() -> Box<dyn FnMut()>,
}

/// All there are.
pub const WORKS: [Work; 7] = [
    Work { name: "envelope/call", prepare: || parse(Bytes::from_static(CALL)) },
    Work { name: "envelope/result_4k", prepare: || parse(result(4 << 10)) },
    Work { name: "sse/encode", prepare: || encode(PROGRESS.into()) },
    Work { name: "sse/encode_4k", prepare: || encode(result(4 << 10)) },
    Work { name: "sse/decode", prepare: decode },
    Work { name: "session/call", prepare: || call(0) },
    Work { name: "session/call_with_10_progress", prepare: || call(10) },
];

/// The work of this name.
pub fn named(name: &str) -> Option<&'static Work> {
    WORKS.iter().find(|work| work.name == name)
}

/// A tool's result with a text of so many bytes, with something to escape in each line.
fn result(bytes: usize) -> Bytes {
    let line = r#"a line with a \"quoted\" word in it\n"#;
    let text = line.repeat(bytes / line.len());
    let content = format!(r#"{{"content":[{{"type":"text","text":"{text}"}}]}}"#);
    Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":17,"result":{content}}}"#))
}

fn parse(raw: Bytes) -> Box<dyn FnMut()> {
    let limits = protocol::Limits::default();
    Box::new(move || {
        let body = protocol::parse(black_box(raw.clone()), &limits);
        black_box(body.expect("a message"));
    })
}

fn encode(line: Bytes) -> Box<dyn FnMut()> {
    let mut out = BytesMut::with_capacity(64 << 10);
    Box::new(move || {
        out.clear();
        sse::message(&mut out, Some("message"), Some(EVENT_ID), black_box(&line));
        black_box(&out);
    })
}

fn decode() -> Box<dyn FnMut()> {
    let mut event = BytesMut::new();
    sse::message(&mut event, Some("message"), Some(EVENT_ID), PROGRESS);
    let mut decoder = sse::Decoder::new(EVENT_BYTES_MAX);
    let mut events = Vec::new();
    Box::new(move || {
        decoder.feed(black_box(&event), &mut events).expect("short enough");
        assert_eq!(events.len(), 1);
        black_box(&events);
        events.clear();
    })
}

fn call(progress: u64) -> Box<dyn FnMut()> {
    let mut calls = Calls::new(progress);
    Box::new(move || calls.make_one())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_work_can_be_repeated_and_is_found_by_its_name() {
        for Work { name, .. } in &WORKS {
            let mut work = (named(name).expect("found").prepare)();
            (0..100).for_each(|_| work());
        }
    }
}
