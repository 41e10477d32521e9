use super::*;
use crate::Failure;
use crate::url::Url;

mod mirrored;
mod progress;

/// A machine, and what its exchanges are.
struct Bench {
    machine: Machine,
    effects: Vec<Effect>,
}

fn message(json: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(json.as_bytes())).unwrap()
}

fn request(id: u64) -> Message {
    message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{}}}}"#))
}

fn response(id: &str) -> Message {
    message(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#))
}

fn text(text: &str) -> HeaderText {
    HeaderText::parse(text.as_bytes()).unwrap()
}

fn event(messages: Vec<Message>, id: Option<&str>) -> ExchangeEvent {
    ExchangeEvent::Event { messages, id: id.map(text), retry_ms: None }
}

fn refused(status: u16) -> ExchangeEvent {
    ExchangeEvent::Refused { status, error: None }
}

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"i","method":"initialize","params":{}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
const RESULT: &str = r#"{"jsonrpc":"2.0","id":"i","result":{"protocolVersion":"2025-06-18",
    "capabilities":{},"serverInfo":{"name":"a","version":"1"}}}"#;

impl Bench {
    fn new() -> Self {
        Self { machine: Machine::new(0xab), effects: Vec::new() }
    }

    /// With a session that is confirmed; its stream is the exchange that is returned.
    fn ready() -> (Self, ExchangeId) {
        let mut bench = Self::new();
        let (opening, _) = bench.send(message(INITIALIZE)).remove(0);
        bench.event(opening, ExchangeEvent::Opened(Some(text("s1"))));
        bench.event(opening, event(vec![message(RESULT)], None));
        bench.event(opening, ExchangeEvent::Ended);
        let (confirming, _) = bench.send(message(INITIALIZED)).remove(0);
        bench.event(confirming, ExchangeEvent::Accepted);
        let (listening, exchange) = bench.started().remove(0);
        assert_eq!(exchange.verb, Verb::Listen(None));
        (bench, listening)
    }

    fn send(&mut self, message: Message) -> Vec<(ExchangeId, Exchange)> {
        self.effects.clear();
        self.machine.send(message, &mut self.effects);
        self.started()
    }

    fn call(&mut self, id: u64) -> ExchangeId {
        self.send(request(id)).remove(0).0
    }

    fn event(&mut self, exchange: ExchangeId, event: ExchangeEvent) {
        self.effects.clear();
        self.machine.on_event(exchange, event, &mut self.effects);
    }

    fn started(&self) -> Vec<(ExchangeId, Exchange)> {
        let started = self.effects.iter().filter_map(|effect| match effect {
            Effect::Start(id, exchange) => Some((*id, exchange.clone())),
            _ => None,
        });
        started.collect()
    }

    /// The delivered messages, with what they are about.
    fn delivered(&self) -> Vec<(String, Option<RequestId>)> {
        let delivered = self.effects.iter().filter_map(|effect| match effect {
            Effect::Deliver { message, about, .. } => {
                Some((String::from_utf8(message.raw().to_vec()).unwrap(), about.clone()))
            }
            _ => None,
        });
        delivered.collect()
    }

    fn returned(&self) -> Vec<Message> {
        let returned = self.effects.iter().filter_map(|effect| match effect {
            Effect::Return(request) => Some(Message::from(request.clone())),
            _ => None,
        });
        returned.collect()
    }

    #[track_caller]
    fn one_error(&self, text: &str) {
        let delivered = self.delivered();
        let [(only, _)] = &delivered[..] else { panic!("one message: {delivered:?}") };
        assert!(only.contains("\"error\"") && only.contains(text), "{only}");
    }

    fn down(&self) -> bool {
        self.effects.iter().any(|effect| matches!(effect, Effect::Down(_)))
    }
}

// holds: POST-02
#[test]
fn a_session_begins_with_the_id_and_the_revision_of_the_server() {
    let (mut bench, _) = Bench::ready();
    let (_, exchange) = bench.send(request(1)).remove(0);
    assert_eq!(exchange.session, Some(text("s1")));
    assert_eq!(exchange.revision, Some(text("2025-06-18")));
    assert_eq!(exchange.verb, Verb::Request(request(1).raw().clone()));
    assert_eq!(bench.machine.delete().unwrap().1.session, Some(text("s1")));
}

#[test]
fn messages_wait_until_the_session_is_confirmed() {
    let mut bench = Bench::new();
    let (opening, exchange) = bench.send(message(INITIALIZE)).remove(0);
    assert_eq!((exchange.session, exchange.revision), (None, None));
    bench.event(opening, ExchangeEvent::Opened(None));
    bench.event(opening, event(vec![message(RESULT)], None));
    let (confirming, _) = bench.send(message(INITIALIZED)).remove(0);
    assert!(bench.send(request(1)).is_empty());
    bench.event(confirming, ExchangeEvent::Accepted);
    let verbs: Vec<_> = bench.started().into_iter().map(|(_, exchange)| exchange.verb).collect();
    assert_eq!(verbs, [Verb::Listen(None), Verb::Request(request(1).raw().clone())]);
}

#[test]
fn a_message_on_the_stream_of_a_request_is_about_it() {
    let (mut bench, listening) = Bench::ready();
    let call = bench.call(7);
    let note = || message(r#"{"jsonrpc":"2.0","method":"notifications/message"}"#);
    bench.event(call, event(vec![note()], None));
    assert_eq!(bench.delivered()[0].1, Some(RequestId::from(7)));
    bench.event(listening, event(vec![note()], None));
    assert_eq!(bench.delivered()[0].1, None);
}

#[test]
fn a_response_counts_once_and_only_for_a_request_in_flight() {
    let (mut bench, _) = Bench::ready();
    let call = bench.call(7);
    bench.event(call, event(vec![response("8"), response("\"7\"")], None));
    assert!(bench.delivered().is_empty());
    bench.event(call, event(vec![response("7")], None));
    assert_eq!(bench.delivered().len(), 1);
    assert_eq!(bench.effects[0], Effect::Release(call));
    bench.event(call, event(vec![response("7")], None));
    bench.event(call, ExchangeEvent::Ended);
    assert!(bench.effects.is_empty(), "{:?}", bench.effects);
}

// holds: SSE-06
#[test]
fn a_stream_that_was_cut_is_resumed_after_the_wait_that_its_server_asked_for() {
    let (mut bench, _) = Bench::ready();
    let call = bench.call(7);
    let id = Some(text("e1"));
    bench.event(call, ExchangeEvent::Event { messages: vec![], id, retry_ms: Some(700) });
    bench.event(call, ExchangeEvent::Failed(Failure::Lost));
    let (again, exchange) = bench.started().remove(0);
    assert_eq!(exchange.verb, Verb::Resume(text("e1")));
    assert_eq!(exchange.after, Duration::from_millis(700));
    bench.event(again, event(vec![response("7")], Some("e2")));
    assert_eq!(bench.delivered()[0].1, Some(RequestId::from(7)));
}

#[test]
fn a_server_may_end_a_stream_any_number_of_times_but_not_fail_as_often() {
    let (mut bench, _) = Bench::ready();
    let mut call = bench.call(7);
    bench.event(call, event(vec![], Some("e1")));
    for _ in 0..100 {
        bench.event(call, ExchangeEvent::Ended);
        call = bench.started().remove(0).0;
    }
    let mut waits = Vec::new();
    for _ in 0..5 {
        bench.event(call, refused(503));
        let (again, exchange) = bench.started().remove(0);
        waits.push(exchange.after.as_secs());
        call = again;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16]);
    bench.event(call, refused(503));
    bench.one_error("HTTP 503");
}

#[test]
fn a_stream_without_event_ids_is_lost_with_its_connection() {
    let (mut bench, _) = Bench::ready();
    let call = bench.call(7);
    bench.event(call, ExchangeEvent::Opened(None));
    bench.event(call, ExchangeEvent::Ended);
    bench.one_error("may have been performed");
    assert!(bench.started().is_empty());
}

#[test]
fn an_error_of_one_request_leaves_the_session() {
    let check = |event: ExchangeEvent, text: &str| {
        let (mut bench, _) = Bench::ready();
        let call = bench.call(7);
        bench.event(call, event);
        bench.one_error(text);
        assert!(!bench.down());
    };
    check(refused(401), "credentials");
    check(refused(403), "credentials");
    check(refused(405), "no MCP endpoint");
    check(refused(429), "too many requests");
    check(refused(500), "HTTP 500");
    check(ExchangeEvent::Accepted, "without an answer");
    check(ExchangeEvent::Failed(Failure::TooLarge), "too large");
    check(ExchangeEvent::Failed(Failure::Connect), "could not be reached\"");
    let own = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"own"}}"#;
    let Ok(Message::Response(own)) = Message::parse(Bytes::from(own)) else { panic!("no error") };
    check(ExchangeEvent::Refused { status: 422, error: Some(own) }, r#""id":7"#);
}

// holds: SES-09
#[test]
fn a_session_that_the_server_does_not_know_ends() {
    let (mut bench, _) = Bench::ready();
    let call = bench.call(7);
    bench.event(call, ExchangeEvent::SessionGone);
    assert!(bench.down());
    assert_eq!(bench.machine.delete(), None);
    assert!(bench.send(request(8)).is_empty());
}

#[test]
fn a_session_ends_if_a_ping_is_refused_as_well_and_its_requests_are_returned() {
    let (mut bench, _) = Bench::ready();
    let (first, second) = (bench.call(7), bench.call(8));
    bench.event(first, refused(400));
    let (ping, exchange) = bench.started().remove(0);
    assert!(matches!(exchange.verb, Verb::Request(raw) if raw.ends_with(b"\"ping\"}")));
    bench.event(second, refused(400));
    assert!(bench.effects.is_empty(), "one ping at a time, and no answer before it");
    bench.event(ping, refused(400));
    assert_eq!(bench.returned(), [request(7), request(8)]);
    assert!(bench.down() && bench.delivered().is_empty());
}

#[test]
fn a_session_whose_ping_is_answered_stays_and_the_request_gets_its_error() {
    let (mut bench, _) = Bench::ready();
    for id in 7..9 {
        let call = bench.call(id);
        bench.event(call, refused(400));
        let (ping, _) = bench.started().remove(0);
        bench.event(ping, ExchangeEvent::Opened(None));
        assert!(bench.delivered().is_empty());
        bench.event(ping, ExchangeEvent::Ended);
        bench.one_error("HTTP 400");
        assert!(!bench.down());
    }
}

// holds: SES-09
#[test]
fn only_a_request_that_was_surely_not_run_is_returned() {
    let (mut bench, _) = Bench::ready();
    let (gone, answered) = (bench.call(7), bench.call(8));
    bench.event(answered, ExchangeEvent::Opened(None));
    bench.event(gone, ExchangeEvent::SessionGone);
    assert_eq!(bench.returned(), [request(7)]);
    assert!(bench.down());

    let (mut bench, _) = Bench::ready();
    let answered = bench.call(8);
    bench.event(answered, ExchangeEvent::Opened(None));
    bench.event(answered, event(vec![], Some("e1")));
    bench.event(answered, ExchangeEvent::Ended);
    let (again, _) = bench.started().remove(0);
    bench.event(again, ExchangeEvent::SessionGone);
    assert!(bench.returned().is_empty() && bench.down());

    let (mut bench, _) = Bench::ready();
    let own = r#"{"jsonrpc":"2.0","id":"roundhouse:resources/subscribe:1","method":"resources/subscribe"}"#;
    let (restoring, _) = bench.send(message(own)).remove(0);
    bench.send(request(9));
    bench.event(restoring, ExchangeEvent::SessionGone);
    assert_eq!(bench.returned(), [message(own), request(9)], "it was not sent");
}

#[test]
fn a_request_that_is_cancelled_while_the_session_is_in_doubt_is_not_returned() {
    let (mut bench, _) = Bench::ready();
    let call = bench.call(7);
    bench.event(call, refused(400));
    let (ping, _) = bench.started().remove(0);
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#;
    bench.send(message(cancel));
    bench.event(ping, refused(400));
    assert!(bench.returned().is_empty() && bench.down());
}

#[test]
fn the_exchange_of_a_cancelled_request_is_released() {
    let (mut bench, _) = Bench::ready();
    let call = bench.call(7);
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#;
    let [(_, note)] = &bench.send(message(cancel))[..] else { panic!("one exchange") };
    assert!(matches!(note.verb, Verb::Note(_)));
    assert_eq!(note.behind, Some(call));
    assert!(bench.effects.contains(&Effect::Release(call)));
    bench.event(call, ExchangeEvent::Failed(Failure::Lost));
    assert!(bench.delivered().is_empty());
}

#[test]
fn the_stream_without_a_request_is_opened_again_except_where_the_server_has_none() {
    let (mut bench, listening) = Bench::ready();
    bench.event(listening, event(vec![], Some("g1")));
    bench.event(listening, ExchangeEvent::Ended);
    let (again, exchange) = bench.started().remove(0);
    assert_eq!(exchange.verb, Verb::Listen(Some(text("g1"))));
    assert_eq!(exchange.after, Duration::from_secs(1));
    bench.event(again, ExchangeEvent::Failed(Failure::Connect));
    let (again, _) = bench.started().remove(0);
    bench.event(again, ExchangeEvent::Failed(Failure::Connect));
    let (again, exchange) = bench.started().remove(0);
    assert_eq!(exchange.after, Duration::from_secs(2));
    bench.event(again, refused(405));
    assert!(bench.effects.is_empty());
}

#[test]
fn a_refused_confirmation_ends_the_session() {
    let mut bench = Bench::new();
    let (opening, _) = bench.send(message(INITIALIZE)).remove(0);
    bench.event(opening, event(vec![message(RESULT)], None));
    let (confirming, _) = bench.send(message(INITIALIZED)).remove(0);
    bench.event(confirming, refused(400));
    assert!(bench.down());
}

// holds: CAN-04
#[test]
fn requests_of_the_node_have_other_ids_at_the_server() {
    let (mut bench, _) = Bench::ready();
    let own = r#"{"jsonrpc":"2.0","id":"roundhouse:tools/list:2","method":"tools/list"}"#;
    let (call, exchange) = bench.send(message(own)).remove(0);
    let Verb::Request(raw) = exchange.verb else { panic!("no request") };
    let Ok(Message::Request(sent)) = Message::parse(raw) else { panic!("no request") };
    assert!(sent.id.to_json().starts_with("\"rh-00000000000000ab-"), "{:?}", sent.id);
    bench.event(call, event(vec![response("\"roundhouse:tools/list:2\"")], None));
    assert!(bench.delivered().is_empty());
    bench.event(call, event(vec![response(&sent.id.to_json())], None));
    let (delivered, _) = bench.delivered().remove(0);
    assert!(delivered.contains("\"roundhouse:tools/list:2\""), "{delivered}");
    let call = bench.send(message(own)).remove(0).0;
    bench.event(call, ExchangeEvent::Failed(Failure::Connect));
    bench.one_error("\"roundhouse:tools/list:2\"");
}

/// A machine whose `initialize` was refused, and the exchange by which the older transport is tried.
fn falling(status: u16) -> (Bench, ExchangeId) {
    let mut bench = Bench::new();
    let (opening, _) = bench.send(message(INITIALIZE)).remove(0);
    bench.event(opening, refused(status));
    let (stream, exchange) = bench.started().remove(0);
    assert_eq!((exchange.verb, exchange.to), (Verb::Listen(None), None));
    (bench, stream)
}

// holds: OLD-08
#[test]
fn a_server_that_refuses_initialize_is_tried_with_http_sse() {
    for status in [400, 404, 405] {
        let (mut bench, stream) = falling(status);
        let url = Url::parse("http://example.com/messages?s=1").unwrap();
        bench.event(stream, ExchangeEvent::Opened(None));
        bench.event(stream, ExchangeEvent::Endpoint(url.clone()));
        let (opening, exchange) = bench.started().remove(0);
        assert_eq!(exchange.verb, Verb::Note(message(INITIALIZE).raw().clone()));
        assert_eq!(exchange.to, Some(url.clone()));
        bench.event(opening, ExchangeEvent::Accepted);
        bench.event(stream, event(vec![message(RESULT)], None));
        assert_eq!(bench.delivered().len(), 1);
        let (confirming, _) = bench.send(message(INITIALIZED)).remove(0);
        bench.event(confirming, ExchangeEvent::Accepted);
        assert!(bench.started().is_empty(), "no second stream");
        let (call, exchange) = bench.send(request(7)).remove(0);
        assert_eq!(exchange.to, Some(url));
        bench.event(call, ExchangeEvent::Accepted);
        bench.event(stream, event(vec![response("7")], None));
        assert_eq!(bench.delivered()[0].1, Some(RequestId::from(7)));
        let call = bench.call(8);
        bench.event(call, refused(503));
        bench.one_error("HTTP 503");
        bench.event(stream, ExchangeEvent::Ended);
        assert!(bench.down());
    }
}

#[test]
fn a_server_without_http_sse_gives_its_first_refusal() {
    let (mut bench, stream) = falling(404);
    bench.event(stream, refused(405));
    bench.one_error("HTTP 404");
    let mut bench = Bench::new();
    let (opening, _) = bench.send(message(INITIALIZE)).remove(0);
    bench.event(opening, refused(401));
    bench.one_error("HTTP 401");
    assert!(bench.started().is_empty());
}

#[test]
fn requests_wait_until_the_state_of_a_session_is_restored() {
    let (mut bench, _) = Bench::ready();
    let own = |n: u64| {
        let id = format!("roundhouse:resources/subscribe:{n}");
        let json = format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"resources/subscribe"}}"#);
        message(&json)
    };
    let (first, _) = bench.send(own(1)).remove(0);
    let (second, exchange) = bench.send(own(2)).remove(0);
    assert!(bench.send(request(7)).is_empty());
    bench.event(first, refused(500));
    assert!(bench.started().is_empty());
    let Verb::Request(raw) = exchange.verb else { panic!("no request") };
    let Ok(Message::Request(sent)) = Message::parse(raw) else { panic!("no request") };
    bench.event(second, event(vec![response(&sent.id.to_json())], None));
    let (_, exchange) = bench.started().remove(0);
    assert_eq!(exchange.verb, Verb::Request(request(7).raw().clone()));
}

#[test]
fn a_request_that_is_cancelled_while_it_waits_is_never_sent() {
    let (mut bench, _) = Bench::ready();
    let own = r#"{"jsonrpc":"2.0","id":"roundhouse:resources/subscribe:1","method":"resources/subscribe"}"#;
    let (restoring, _) = bench.send(message(own)).remove(0);
    assert!(bench.send(request(7)).is_empty());
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#;
    assert!(bench.send(message(cancel)).is_empty());
    bench.event(restoring, refused(500));
    assert!(bench.started().is_empty());
}

#[test]
fn the_stream_is_opened_again_after_a_refused_credential() {
    let (mut bench, listening) = Bench::ready();
    bench.event(listening, refused(401));
    let (_, exchange) = bench.started().remove(0);
    assert_eq!((exchange.verb, exchange.after), (Verb::Listen(None), Duration::from_secs(30)));
}

/// The state that a machine saves once its session is confirmed.
fn saved() -> Bytes {
    let mut bench = Bench::new();
    let (opening, _) = bench.send(message(INITIALIZE)).remove(0);
    bench.event(opening, ExchangeEvent::Opened(Some(text("s1"))));
    bench.event(opening, event(vec![message(RESULT)], None));
    let (confirming, _) = bench.send(message(INITIALIZED)).remove(0);
    bench.event(confirming, ExchangeEvent::Accepted);
    let saved = bench.effects.iter().find_map(|effect| match effect {
        Effect::Save(state) => Some(state.clone()),
        _ => None,
    });
    saved.unwrap()
}

fn position(stream: &str, at: &str) -> Position {
    Position { stream: stream.into(), at: at.into() }
}

// holds: SES-10, SSE-07
#[test]
fn another_machine_carries_a_session_on_without_a_handshake() {
    let positions = [
        (None, saved::position(Some(&text("s1")), None, &text("g1")).unwrap()),
        (Some(RequestId::from(7)), position("", "e1")),
        (Some(RequestId::from(8)), position("\"rh-1\"", "f1")),
    ];
    let machine = Machine::carry_on(0xcd, &saved(), &positions).unwrap();
    let mut bench = Bench { machine, effects: Vec::new() };
    assert_eq!(bench.machine.delete().unwrap().1.session, Some(text("s1")));
    let started = bench.send(message(INITIALIZE));
    let (answer, _) = bench.delivered().remove(0);
    assert!(answer.contains("2025-06-18") && answer.contains("\"id\":\"i\""), "{answer}");
    let verbs: Vec<_> = started.iter().map(|(_, exchange)| exchange.verb.clone()).collect();
    let resume = |at| Verb::Resume(text(at));
    assert_eq!(verbs, [Verb::Listen(Some(text("g1"))), resume("e1"), resume("f1")]);
    let is_in_session = |(_, exchange): &(ExchangeId, Exchange)| {
        exchange.session == Some(text("s1")) && exchange.revision == Some(text("2025-06-18"))
    };
    assert!(started.iter().all(is_in_session));
    assert!(bench.send(message(INITIALIZED)).is_empty(), "the server has it");

    bench.event(started[2].0, event(vec![response("\"rh-1\"")], Some("f2")));
    assert_eq!(bench.delivered()[0].1, Some(RequestId::from(8)));
    assert!(bench.delivered()[0].0.contains("\"id\":8"));
    // Its first run may still be at the server under this id.
    let (_, exchange) = bench.send(request(9)).remove(0);
    let Verb::Request(raw) = exchange.verb else { panic!("no request") };
    let Ok(Message::Request(sent)) = Message::parse(raw) else { panic!("no request") };
    assert!(sent.id.to_json().starts_with("\"rh-00000000000000cd-"), "{:?}", sent.id);
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}"#;
    let (_, exchange) = bench.send(message(cancel)).remove(0);
    let Verb::Note(raw) = exchange.verb else { panic!("no notification") };
    let Ok(Message::Notification(sent_cancel)) = Message::parse(raw) else {
        panic!("no notification")
    };
    let cancelled = payload::cancelled_request_id(&sent_cancel.params().unwrap());
    assert_eq!(cancelled, Some(sent.id));
}

#[test]
fn a_message_carries_how_far_its_stream_was_read() {
    let (mut bench, listening) = Bench::ready();
    let call = bench.call(7);
    let note = || message(r#"{"jsonrpc":"2.0","method":"notifications/message"}"#);
    let read = |bench: &Bench| -> Vec<_> {
        let read = bench.effects.iter().filter_map(|effect| match effect {
            Effect::Deliver { position, .. } => Some(position.clone().map(|p| p.at.to_string())),
            Effect::Advance { position, .. } => Some(Some(format!("only {}", position.at))),
            _ => None,
        });
        read.collect()
    };
    let some = |text: &str| Some(text.to_owned());
    bench.event(call, event(vec![], Some("e1")));
    assert_eq!(read(&bench), [some("only e1")]);
    bench.event(call, event(vec![note(), note()], Some("e2")));
    assert_eq!(read(&bench), [None, some("e2")], "both are kept, or none");
    bench.event(call, event(vec![note()], None));
    assert_eq!(read(&bench), [None]);
    bench.event(listening, event(vec![note()], Some("g1")));
    assert_eq!(read(&bench), [some("e8bc163c g1")]);
    bench.event(call, event(vec![response("7")], Some("e3")));
    assert_eq!(read(&bench), [None], "a request with its response is not resumed");
}

#[test]
fn a_stream_that_a_former_owner_still_has_is_requested_again() {
    let positions = [(Some(RequestId::from(7)), position("", "e1"))];
    let machine = Machine::carry_on(0xcd, &saved(), &positions).unwrap();
    let mut bench = Bench { machine, effects: Vec::new() };
    for (exchange, _) in bench.send(message(INITIALIZE)) {
        bench.event(exchange, refused(409));
        assert_eq!(bench.started().len(), 1);
        assert!(bench.delivered().is_empty());
    }
    assert!(Machine::carry_on(1, b"{}", &[]).is_none());
}
