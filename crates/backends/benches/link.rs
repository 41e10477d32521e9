//! Measures a message through a link, without a session or a server.

use std::task::{Context, Poll, Waker};

use backends::native::{Call, Error, Handler, Info, NativeBackend};
use backends::{Backend as _, Link, LinkEvent, LinkLimits};
use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use protocol::{Message, SessionId};

const CALL: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello there"}}}"#;

struct Echo;

impl Handler for Echo {
    fn info(&self) -> Info {
        Info::new("echo", "1")
    }

    async fn call(&self, call: Call) -> Result<Bytes, Error> {
        Ok(call.params().unwrap_or_default())
    }
}

fn links(criterion: &mut Criterion) {
    let message = Message::parse(Bytes::from_static(CALL)).expect("a message");
    let mut context = Context::from_waker(Waker::noop());

    let (mut link, end) = Link::pair(LinkLimits::default());
    let sender = end.sender();
    criterion.bench_function("say and poll", |bencher| {
        bencher.iter(|| {
            let message_event = LinkEvent::Message { message: message.clone(), about: None };
            assert!(sender.try_send(message_event).expect("a session").is_none());
            assert!(link.events.poll_next(&mut context).is_ready());
        });
    });

    let (link, mut end) = Link::pair(LinkLimits::default());
    criterion.bench_function("send and hear", |bencher| {
        bencher.iter(|| {
            link.sender.send(message.clone()).expect("room");
            assert!(end.poll_receive(&mut context).is_ready());
        });
    });

    let session = SessionId::parse("session").expect("an id");
    let mut link = NativeBackend::new(Echo).open(&session);
    assert!(matches!(link.events.poll_next(&mut context), Poll::Ready(Some(LinkEvent::Up))));
    criterion.bench_function("native call", |bencher| {
        bencher.iter(|| {
            link.sender.send(message.clone()).expect("room");
            assert!(link.events.poll_next(&mut context).is_ready());
            assert!(link.events.poll_next(&mut context).is_pending());
        });
    });
}

criterion_group!(benches, links);
criterion_main!(benches);
