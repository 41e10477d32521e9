//! The cost of a call of a mounted `rmcp` service between the link and its response, compared with
//! that of an equal native handler.
#![allow(missing_docs, reason = "criterion makes undocumented functions")]

use std::time::{Duration, Instant};

use backends::native::{self, Call, Error, Handler, Info, NativeBackend};
use backends::rmcp::RmcpBackend;
use backends::{Backend, Link, LinkEvent};
use criterion::{Criterion, criterion_group, criterion_main};
use everything::Everything;
use protocol::{Method, Request, SessionId};
use serde_json::{Value, json};

const ARGUMENTS: &str = r#"{"text":"hello","numbers":[1,2,3],"deep":{"a":{"b":"c"}}}"#;

/// Reads and writes as much JSON as `rh_echo`.
struct Echo;

impl Handler for Echo {
    fn info(&self) -> Info {
        Info::new("echo", "1").capabilities(r#"{"tools":{}}"#)
    }

    async fn call(&self, call: Call) -> Result<bytes::Bytes, Error> {
        let params: Value = call.params_as()?;
        let text = params["arguments"].to_string();
        native::json(&json!({
            "content": [{ "type": "text", "text": text }],
            "structuredContent": params["arguments"],
            "isError": false,
        }))
    }
}

fn call(id: i64, params: &str) -> Request {
    Request::new(id.into(), Method::ToolsCall, Some(params.as_bytes()))
}

async fn open(backend: &dyn Backend) -> Link {
    let mut link = backend.open(&SessionId::parse("bench").expect("an id"));
    let params = br#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    let request = Request::new(0.into(), Method::Initialize, Some(params));
    link.sender.send(request.into()).expect("room");
    while !matches!(link.events.next().await, Some(LinkEvent::Message { .. })) {}
    link
}

async fn calls(backend: &dyn Backend, count: u64) -> Duration {
    let mut link = open(backend).await;
    let params = format!(r#"{{"name":"rh_echo","arguments":{ARGUMENTS}}}"#);
    let start = Instant::now();
    for id in 0..count {
        let request = call(i64::try_from(id).expect("small"), &params);
        link.sender.send(request.into()).expect("room");
        while !matches!(link.events.next().await, Some(LinkEvent::Message { .. })) {}
    }
    start.elapsed()
}

fn mounted(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let kinds: [(&str, Box<dyn Backend>); 2] = [
        ("echo_of_a_native_handler", Box::new(NativeBackend::new(Echo))),
        ("echo_of_an_rmcp_service", Box::new(RmcpBackend::new(|_| Everything::new()))),
    ];
    for (name, backend) in kinds {
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|count| runtime.block_on(calls(&*backend, count)));
        });
    }
}

criterion_group!(benches, mounted);
criterion_main!(benches);
