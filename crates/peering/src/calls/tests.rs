//! Unit tests of `Calls` without a connection.

use prost::Message as _;

use super::*;
use crate::frame::{Frame, Reply};

struct NoConnection;

impl Deferred for NoConnection {
    fn perform(&self) {}

    fn perform_elsewhere(&self) {}
}

fn calls() -> Calls {
    let limits = Limits { calls: 4, waiting_bytes: 1_000, message_bytes: 1_000, window: 4 };
    let calls = Calls::new(limits);
    calls.up(Arc::new(NoConnection));
    calls
}

fn written(calls: &Calls) -> Option<Kind> {
    let mut bytes = BytesMut::new();
    calls.write_frames(0, &mut bytes, 1);
    let frame = (!bytes.is_empty()).then(|| Frame::decode_length_delimited(bytes));
    frame.and_then(|frame| frame.expect("a frame").kind)
}

#[test]
fn a_caller_that_leaves_after_the_last_reply_sends_no_cancellation() {
    for last in [true, false] {
        let calls = calls();
        let (id, _) = calls.open(Bytes::from_static(b"a call")).expect("there is room");
        assert!(matches!(written(&calls), Some(Kind::Open(_))));
        let body = Bytes::from_static(b"a reply");
        assert!(calls.take(Kind::Reply(Reply { id, body, last, rest: 0 })));
        calls.forget(id);
        assert_eq!(written(&calls), (!last).then_some(Kind::Cancel(id)));
    }
}

#[test]
fn the_last_reply_ends_the_call() {
    let calls = calls();
    let (id, _) = calls.open(Bytes::from_static(b"a call")).expect("there is room");
    written(&calls);
    let body = Bytes::from_static(b"a reply");
    assert!(calls.take(Kind::Reply(Reply { id, body: body.clone(), last: true, rest: 0 })));
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(calls.poll_reply(id, &mut context), Poll::Ready(Some(Ok(body))));
    assert_eq!(calls.poll_reply(id, &mut context), Poll::Ready(None));
    calls.link_broke(true);
    assert_eq!(calls.poll_reply(id, &mut context), Poll::Ready(None));
}
