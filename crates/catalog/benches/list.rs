//! How long a catalog takes to list its tools from memory: 20 servers with ten tools each.

use std::future::poll_fn;

use backends::native::{self, Call, Error, Handler, Info, NativeBackend};
use backends::{Backend, Link, LinkEvent};
use catalog::{Catalog, MemberSettings, Members, Pinning};
use criterion::{Criterion, criterion_group, criterion_main};
use protocol::{Message, Method, Request, Response, SessionId};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const SERVERS: usize = 20;
const TOOLS: usize = 10;

/// A server with tools of usual size.
struct Server;

impl Handler for Server {
    fn info(&self) -> Info {
        Info::new("server", "1").capabilities(r#"{"tools":{}}"#)
    }

    async fn call(&self, _call: Call) -> Result<bytes::Bytes, Error> {
        let property = json!({ "type": "string", "description": "A parameter. ".repeat(5) });
        let schema = json!({ "type": "object", "properties": { "a": property, "b": property } });
        let tool = |number| {
            json!({
                "name": format!("tool_{number}"),
                "description": "What this tool does, in some sentences. ".repeat(5),
                "inputSchema": schema,
            })
        };
        native::json(&json!({ "tools": (0..TOOLS).map(tool).collect::<Vec<_>>() }))
    }
}

async fn request(link: &mut Link, id: i64, method: Method, params: Option<&str>) -> Response {
    let request = Request::new(id.into(), method, params.map(str::as_bytes));
    link.sender.send(Message::Request(request)).expect("the link has room");
    loop {
        match poll_fn(|context| link.events.poll_next(context)).await {
            Some(LinkEvent::Message { message: Message::Response(response), .. }) => {
                return response;
            }
            Some(LinkEvent::Down { reason }) => panic!("{reason}"),
            Some(_) => {}
            None => panic!("the link is down"),
        }
    }
}

fn lists(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime starts");
    let names: Vec<String> = (0..SERVERS).map(|number| format!("server{number:02}")).collect();
    let plain = MemberSettings::default();
    let members = Members::new(names.iter().map(|name| (name.as_str(), &plain)));
    let backends = names.iter().map(|_| Arc::new(NativeBackend::new(Server)) as Arc<dyn Backend>);
    let members = members.expect("the names are fine");
    let pinning = Pinning::off(members.names().cloned());
    let catalog = Catalog::new("bench", members, backends, Duration::from_secs(10), pinning);
    let session = SessionId::parse("bench").expect("an id");
    let (mut link, bytes) = runtime.block_on(async {
        let mut link = catalog.open(&session);
        let info = json!({ "name": "bench", "version": "1" });
        let params =
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
        request(&mut link, 1, Method::Initialize, Some(&params.to_string())).await;
        let listed = request(&mut link, 2, Method::ToolsList, None).await;
        let result = listed.outcome().expect("a list");
        let result: Value = serde_json::from_slice(&result).expect("JSON");
        assert_eq!(result["tools"].as_array().map(Vec::len), Some(SERVERS * TOOLS));
        (link, result.to_string().len())
    });
    criterion.bench_function(&format!("tools/list of 20 servers, {bytes} bytes"), |bencher| {
        bencher.iter(|| runtime.block_on(request(&mut link, 3, Method::ToolsList, None)));
    });
    criterion.bench_function("tools/call through 20 servers", |bencher| {
        let params = Some(r#"{"name":"server19__tool_9"}"#);
        bencher.iter(|| runtime.block_on(request(&mut link, 4, Method::ToolsCall, params)));
    });
}

criterion_group!(benches, lists);
criterion_main!(benches);
