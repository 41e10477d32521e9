//! Calls whose peer says little.

use prost::Message as _;

use super::*;
use crate::frame::{Frame, Reply};

struct Mute;

impl Deferred for Mute {
    fn perform(&self) {}

    fn perform_elsewhere(&self) {}
}

fn calls() -> Calls {
    let limits = Limits { calls: 4, waiting_bytes: 1_000, message_bytes: 1_000, window: 4 };
    let calls = Calls::new(limits);
    calls.up(Arc::new(Mute));
    calls
}

fn written(calls: &Calls) -> Option<Kind> {
    let mut said = BytesMut::new();
    calls.write_frames(0, &mut said, 1);
    let frame = (!said.is_empty()).then(|| Frame::decode_length_delimited(said));
    frame.and_then(|frame| frame.expect("a frame").kind)
}

#[test]
fn who_goes_with_the_last_reply_leaves_nothing_to_cancel() {
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
fn after_the_last_reply_comes_nothing() {
    let calls = calls();
    let (id, _) = calls.open(Bytes::from_static(b"a call")).expect("there is room");
    written(&calls);
    let body = Bytes::from_static(b"a reply");
    assert!(calls.take(Kind::Reply(Reply { id, body: body.clone(), last: true, rest: 0 })));
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(calls.poll_reply(id, &mut context), Poll::Ready(Some(Ok(body))));
    assert_eq!(calls.poll_reply(id, &mut context), Poll::Ready(None));
    calls.broke(true);
    assert_eq!(calls.poll_reply(id, &mut context), Poll::Ready(None));
}
