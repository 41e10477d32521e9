//! The smallest parts of a call that need no socket, no clock and no thread: reading envelopes,
//! server-sent events, the steps of a session, the records of an exchange, its trace, and the limits of
//! a tenant.
//!
//! The program `instructions` repeats one part under an instruction counter, and the benchmark
//! `pure` times all of them. A count and a time with the same name are of the same work.

mod access;
mod audit;
mod call;
mod limits;
mod traces;

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use protocol::sse;
use telemetry::Access;

use crate::call::Calls;

/// A call of a tool, as clients send it.
const CALL: &[u8] = br#"{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello there"},"_meta":{"progressToken":17}}}"#;
/// A progress notification of a tool.
const PROGRESS: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":17,"progress":3,"total":10,"message":"a third"}}"#;
/// An event id in the format of sessions.
const EVENT_ID: &str = "1042.00c0ffee00c0ffee-1044";
/// The longest event that is read, in bytes; far above the events here.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// One piece of work that can be repeated.
pub struct Work {
    /// The name: its area, and what is done there.
    pub name: &'static str,
    /// Prepares the repetitions. Each call of the returned function does the work once.
    pub prepare: fn() -> Box<dyn FnMut()>,
}

/// Every work whose count is compared.
pub const WORKS: [Work; 12] = [
    Work { name: "access/all", prepare: || access::record(Access::All) },
    Work { name: "access/sampled", prepare: || access::record(Access::Sampled) },
    Work { name: "audit/call", prepare: audit::records },
    Work { name: "envelope/call", prepare: || parse(Bytes::from_static(CALL)) },
    Work { name: "envelope/result_4k", prepare: || parse(result(4 << 10)) },
    Work { name: "limits/decision", prepare: || limits::decision(1_000_000.0) },
    Work { name: "limits/decision_low_rate", prepare: || limits::decision(100.0) },
    Work { name: "sse/encode", prepare: || encode(PROGRESS.into()) },
    Work { name: "sse/encode_4k", prepare: || encode(result(4 << 10)) },
    Work { name: "sse/decode", prepare: decode },
    Work { name: "session/call", prepare: || call(0) },
    Work { name: "session/call_with_10_progress", prepare: || call(10) },
];

/// Works whose counts are not stored yet, and are not compared.
pub const UNCOMPARED: [Work; 4] = [
    Work { name: "trace/duration", prepare: traces::duration },
    Work { name: "trace/not_taken", prepare: traces::not_taken },
    Work { name: "trace/off", prepare: traces::off },
    Work { name: "trace/taken", prepare: traces::taken },
];

/// The work of this name.
pub fn named(name: &str) -> Option<&'static Work> {
    WORKS.iter().chain(&UNCOMPARED).find(|work| work.name == name)
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
        for Work { name, .. } in WORKS.iter().chain(&UNCOMPARED) {
            let mut work = (named(name).expect("found").prepare)();
            (0..100).for_each(|_| work());
        }
    }
}
