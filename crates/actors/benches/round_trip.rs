//! Measures the cost of a call between the handle and the tenant's handler, on one thread: the
//! mailbox, the state machine, the link and the reply queue. No socket, no parsing. `cargo bench -p
//! actors`.
#![allow(missing_docs, reason = "criterion makes undocumented functions")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use actors::{Answer, Caller, Handle, NodeParts, ReplyEvent, Settings};
use backends::native::{Call, Error, Handler, Info, NativeBackend};
use backends::{Backend, Backends};
use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use protocol::{Body, Method, Notification, Request};
use store::Memory;
use tenants::{Principal, Tenant};

struct Echo;

impl Handler for Echo {
    fn info(&self) -> Info {
        Info::new("echo", "1").capabilities(r#"{"logging":{}}"#)
    }

    async fn call(&self, call: Call) -> Result<Bytes, Error> {
        Ok(call.params().unwrap_or_default())
    }
}

async fn session() -> (Handle, Caller) {
    let backend: Arc<dyn Backend> = Arc::new(NativeBackend::new(Echo));
    let backends = Backends::new([("acme".into(), backend)]);
    let handle =
        Handle::new(NodeParts::alone(Settings::default(), Arc::new(Memory::default()), backends));
    let tenant = Arc::new(Tenant::of_peer("acme".into(), usize::MAX));
    let principal = Principal::anonymous();
    let params = br#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    let request = Request::new(0.into(), Method::Initialize, Some(params));
    let mut opened = handle.initialize(&tenant, &principal, request, None).await.unwrap();
    assert!(matches!(opened.replies.next().await, Some(ReplyEvent::Answer(Answer::Welcome(_)))));
    let caller = Caller { tenant, principal, session: opened.session, tokens: None };
    let initialized = Notification::new(Method::Initialized, None);
    let mut posted = handle.post(&caller, Body::One(initialized.into()), None);
    assert!(posted.next().await.is_some());
    (handle, caller)
}

async fn call(handle: &Handle, caller: &Caller, body: Body) {
    let mut replies = handle.post(caller, body, None);
    let Some(ReplyEvent::Answer(Answer::Json(_))) = replies.next().await else {
        panic!("the call was not answered with JSON");
    };
}

fn body(id: i64) -> Body {
    let params = br#"{"name":"echo","arguments":{"text":"hello"}}"#;
    Body::One(Request::new(id.into(), Method::ToolsCall, Some(params)).into())
}

fn round_trip(criterion: &mut Criterion) {
    let system = actix_rt::System::new();
    let (handle, caller) = system.block_on(session());
    let mut next = 1;
    criterion.bench_function("actor/round_trip", |bencher| {
        bencher.iter_custom(|iterations| {
            let first = next;
            next += i64::try_from(iterations).unwrap();
            let bodies: Vec<_> = (first..next).map(body).collect();
            system.block_on(async {
                let start = Instant::now();
                for body in bodies {
                    call(&handle, &caller, body).await;
                }
                start.elapsed()
            })
        });
    });
    criterion.bench_function("actor/round_trip_of_16_at_once", |bencher| {
        bencher.iter_custom(|iterations| {
            let mut elapsed = Duration::ZERO;
            for _ in 0..iterations {
                next += 16;
                let bodies: Vec<_> = (next - 16..next).map(body).collect();
                elapsed += system.block_on(async {
                    let start = Instant::now();
                    let mut reply_streams = Vec::with_capacity(16);
                    for body in bodies {
                        reply_streams.push(handle.post(&caller, body, None));
                    }
                    for replies in &mut reply_streams {
                        assert!(replies.next().await.is_some());
                    }
                    start.elapsed()
                });
            }
            elapsed
        });
    });
}

fn setup(criterion: &mut Criterion) {
    let system = actix_rt::System::new();
    criterion.bench_function("actor/birth_and_end", |bencher| {
        let (handle, caller) = system.block_on(session());
        bencher.iter(|| {
            system.block_on(async {
                let params = br#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
                let request = Request::new(0.into(), Method::Initialize, Some(params));
                let mut opened = handle
                    .initialize(&caller.tenant, &caller.principal, request, None)
                    .await
                    .unwrap();
                assert!(opened.replies.next().await.is_some());
                let caller = Caller { session: opened.session, ..caller.clone() };
                assert!(handle.delete(&caller).next().await.is_some());
            });
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = round_trip, setup
}
criterion_main!(benches);
