//! What the audit log adds to a call on the thread that serves it: the two records, made as the front
//! makes them, and the queue to the writer.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use audit::{Audit, Entry, Origin, OriginSource, RequestName, SessionOrigin, Settings};
use bytes::Bytes;
use protocol::{About, Body, Limits, Message, Request, RequestId};

use crate::CALL;

const SESSION: &str = "0b3e6f3a-5a0c-4d9c-8b59-0d6b2a1f4c11-00c0ffee";
/// So many calls are in one batch.
const BATCH: usize = 16;

/// Both records of each call.
pub(crate) fn records() -> Box<dyn FnMut()> {
    let recorder = Audit::collecting(&Settings::default()).recorder();
    let (call, tenant) = (call(), Arc::from("acme"));
    let mut made = 0;
    Box::new(move || {
        let began = Instant::now();
        let about = About::of(black_box(&call));
        let origin = OriginSource::Session(SessionOrigin {
            session: black_box(SESSION),
            client: "sub:https://issuer.example ada",
            endpoint: "mcp",
            of_client: |_| Origin {
                principal: Some("subject"),
                issuer: Some("https://issuer.example"),
                subject: Some("ada"),
                ..Origin::default()
            },
        });
        let entry = Entry {
            call: Some(recorder.next_call()),
            origin,
            request: match &call.id {
                RequestId::Number(number) => Some(RequestName::Number(*number)),
                RequestId::String(text) => Some(RequestName::Text(text)),
            },
            method: Some(call.method.as_str()),
            about: about.subject.as_ref().map(|(kind, name)| (*kind, &**name)),
            is_ambiguous: about.is_ambiguous,
            bytes_in: Some(CALL.len() as u64),
            ..Entry::default()
        };
        assert!(recorder.begin(&tenant, &entry).is_ok(), "there is room");
        let now = Instant::now();
        let end = Entry {
            at: Some(now),
            call: entry.call,
            outcome: Some("result"),
            status: Some(200),
            duration: Some(now.duration_since(began).max(Duration::from_micros(9))),
            bytes_out: Some(81),
            ..Entry::default()
        };
        recorder.end(&tenant, &end);
        made += 1;
        if made % BATCH == 0 {
            black_box(recorder.take_all());
        }
    })
}

fn call() -> Request {
    match protocol::parse(Bytes::from_static(CALL), &Limits::default()) {
        Ok(Body::One(Message::Request(call))) => call,
        other => panic!("{other:?}"),
    }
}
