//! What the access log adds to a call: the record, made as the front makes it, and the queue to the
//! writer.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use protocol::glance::{self, Kind};
use protocol::{Body, Limits, Message, Request};
use telemetry::{Access, AccessLog, ExchangeRecord, Label, Outcome, SessionTag, Settings};

use crate::CALL;

/// The response to the call.
const RESULT: &[u8] =
    br#"{"jsonrpc":"2.0","id":17,"result":{"content":[{"type":"text","text":"hello there"}]}}"#;
const SESSION: &str = "0b3e6f3a-5a0c-4d9c-8b59-0d6b2a1f4c11-00c0ffee";
/// So many records are made until the queue is emptied, as by the writer.
const BATCH: usize = 1_000;

/// A record for each call, with this setting.
pub(crate) fn record(access: Access) -> Box<dyn FnMut()> {
    let log = AccessLog::collecting(&Settings { access, ..Settings::default() });
    let call = call();
    let (tenant, node, client) = (Arc::from("acme"), Arc::from("n1"), Label::of("inspector/2.1"));
    let mut made = 0;
    Box::new(move || {
        let began = Instant::now();
        if log.is_on() {
            log.add(record_of(&call, began, (&tenant, &node, &client)));
        }
        made += 1;
        if made % BATCH == 0 {
            black_box(log.take_all());
        }
    })
}

fn record_of(
    call: &Request,
    began: Instant,
    (tenant, node, client): (&Arc<str>, &Arc<str>, &Label),
) -> ExchangeRecord {
    let outcome = match glance::kind_of(black_box(RESULT)) {
        Some(Kind::Result) => Outcome::Result,
        other => panic!("{other:?}"),
    };
    ExchangeRecord {
        ended_at: SystemTime::now(),
        duration: began.elapsed(),
        tenant: Some(Arc::clone(tenant)),
        session: Some(SessionTag::of(black_box(SESSION))),
        revision: Some("2025-11-25"),
        client: Some(client.clone()),
        endpoint: "mcp",
        verb: "POST",
        method: call.method.known_name().map(Label::Known),
        tool: black_box(call).tool_name().map(|name| Label::of(&name)),
        outcome,
        status: 200,
        code: None,
        bytes_in: CALL.len() as u64,
        bytes_out: RESULT.len() as u64,
        node: Arc::clone(node),
        owner: None,
        trace: None,
    }
}

fn call() -> Request {
    match protocol::parse(Bytes::from_static(CALL), &Limits::default()) {
        Ok(Body::One(Message::Request(call))) => call,
        other => panic!("{other:?}"),
    }
}
