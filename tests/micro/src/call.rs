//! A session whose client calls a tool repeatedly.

use std::hint::black_box;
use std::sync::Arc;

use bytes::Bytes;
use conversation::{
    Answer, Effect, Event, Frame, Limits, Millis, OwnerTag, Rerun, Session, SessionSetup, SinkId,
};
use protocol::{Body, Message, Method, Notification, Request, Response};

/// The time between two calls, in milliseconds. It is so long that the replay data, which are kept
/// for five minutes, soon reach their final size. Every further call then costs the same.
const BETWEEN_CALLS_MS: u64 = 10_000;
/// The number of calls until then, made before the first call that is measured.
const WARM_UP: u64 = 64;

/// A session after the handshake, its client and its server. The log acknowledges at once.
pub(crate) struct Calls {
    session: Session,
    now: Millis,
    next_sink: u64,
    /// The request of each call: an id may be used again once it is answered.
    call: Message,
    /// The messages of the server for each call.
    said: Vec<Message>,
    /// The expected effects of each call.
    expected: Seen,
    effects: Vec<Effect>,
    seen: Seen,
}

/// The counts of the effects of one call.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    sent: u64,
    answers: u64,
    messages: u64,
}

impl Calls {
    pub(crate) fn new(progress: u64) -> Self {
        let setup = SessionSetup {
            limits: Arc::new(Limits::default()),
            owner_tag: OwnerTag(0x00c0_ffee),
            seed: 1,
            rerun: Rerun::Annotated,
            start_secs: None,
            idle_stop_secs: None,
            duplex: None,
        };
        let now = Millis(1_000);
        let session = Session::new(setup, now);
        let (call, said) = script(progress);
        let is_stream = progress > 0;
        let messages = if is_stream { progress + 1 } else { 0 };
        let expected = Seen { sent: 1, answers: u64::from(!is_stream), messages };
        let mut calls = Self {
            session,
            now,
            next_sink: 0,
            call,
            said,
            expected,
            effects: Vec::new(),
            seen: Seen::default(),
        };
        calls.shake_hands();
        (0..WARM_UP).for_each(|_| calls.make_one());
        calls
    }

    /// The handshake of both sides.
    fn shake_hands(&mut self) {
        let params = br#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
        let result = br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}"#;
        self.post(Request::new(0.into(), Method::Initialize, Some(params)).into());
        let mut effects = Vec::new();
        self.session.step(self.now, Event::LinkUp, &mut effects);
        let id = effects.iter().find_map(|effect| match effect {
            Effect::Send(Message::Request(request)) => Some(request.id.clone()),
            _ => None,
        });
        self.say(Response::result(id.expect("a request to the server"), result).into());
        self.post(Notification::new(Method::Initialized, None).into());
        assert_eq!(self.seen.answers, 2, "`initialize` and `initialized` are answered");
    }

    /// A call, and all messages of the server for it.
    pub(crate) fn make_one(&mut self) {
        self.seen = Seen::default();
        self.now = self.now.plus(BETWEEN_CALLS_MS);
        self.post(self.call.clone());
        for said in 0..self.said.len() {
            self.say(self.said[said].clone());
        }
        assert_eq!(self.seen, self.expected);
    }

    fn post(&mut self, message: Message) {
        let (sink, body) = (SinkId(self.next_sink), Body::One(message));
        self.next_sink += 1;
        self.step(Event::Posted { sink, body, mirrored: None, again: false, forwarded: false });
    }

    fn say(&mut self, message: Message) {
        self.step(Event::ServerMessage { message, about: None, position: None });
    }

    /// One step, and the events that its effects cause, as an actor performs them.
    fn step(&mut self, event: Event) {
        let mut effects = std::mem::take(&mut self.effects);
        self.session.step(self.now, event, &mut effects);
        let mut held: Vec<Event> = Vec::new();
        for effect in effects.drain(..) {
            match effect {
                Effect::Append { first, entries, .. } => {
                    held.push(Event::Appended { through: first + entries.len() as u64 - 1 });
                }
                Effect::Save { version, .. } => held.push(Event::Saved { version }),
                Effect::Send(message) => {
                    self.seen.sent += 1;
                    black_box(message);
                }
                Effect::Answer { answer, .. } => {
                    assert!(!matches!(answer, Answer::Refused(_)), "{answer:?}");
                    self.seen.answers += 1;
                    black_box(answer);
                }
                Effect::Write { frame: Frame::Message { id, data }, .. } => {
                    self.seen.messages += 1;
                    black_box::<(_, Bytes)>((id, data));
                }
                other => drop(black_box(other)),
            }
        }
        self.effects = effects;
        black_box(self.session.deadline());
        held.into_iter().for_each(|event| self.step(event));
    }
}

/// A call and the messages of the server for it: so many progress notifications, and the response.
fn script(progress: u64) -> (Message, Vec<Message>) {
    let params =
        br#"{"name":"echo","arguments":{"text":"hello there"},"_meta":{"progressToken":17}}"#;
    let result = br#"{"content":[{"type":"text","text":"hello there"}]}"#;
    let call = Request::new(17.into(), Method::ToolsCall, Some(params)).into();
    let progress = (1..=progress).map(|step| {
        let params = format!(r#"{{"progressToken":17,"progress":{step},"total":10}}"#);
        Notification::new(Method::Progress, Some(params.as_bytes())).into()
    });
    let answer = Response::result(17.into(), result).into();
    (call, progress.chain([answer]).collect())
}
