//! A node is killed, and its sessions continue elsewhere: the events of connections that outlive
//! it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::nodes::Common;
use crate::support::{STEPS, World, messages, next, receive_all, text, wait_until};
use actors::{Answer, Caller, Care, Frame, Refusal, ReplyEvent, ReplyStream, Settings};
use backends::LinkEvent;
use bytes::Bytes;
use conversation::Rerun;
use protocol::{Body, Message, Method, Notification};

const REVISIONS: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];

/// A call that is sent before the death is detected may have reached the dead node. Tests with such
/// calls permit them to run twice.
fn always() -> Care {
    Care { rerun: Rerun::Always, ..Care::default() }
}

/// Sends a notification of the server that belongs to no request, once a link is open. A killed
/// node's link may still have an open end.
async fn says(node: &World, number: usize) {
    let params = format!(r#"{{"level":"error","data":{number}}}"#);
    let message = Notification::new(Method::LogMessage, Some(params.as_bytes())).into();
    let sender = node.script.senders.lock().unwrap().last().cloned().unwrap();
    sender.send(LinkEvent::Message { message, about: None }).await.unwrap();
}

/// The number of links that were opened, on all nodes.
fn links(node: &World) -> usize {
    node.script.senders.lock().unwrap().len()
}

/// Opens a stream for notifications that belong to no request.
async fn listening(node: &World, caller: &Caller) -> ReplyStream {
    let mut replies = node.handle.listen(caller, None);
    let events = next(&mut replies).await;
    assert!(matches!(events, Some(ReplyEvent::Open { welcome: false, .. })), "{events:?}");
    replies
}

/// Reads `count` messages. Fails on a second head, and on events that are not for clients.
async fn some(replies: &mut ReplyStream, count: usize) -> Vec<(Option<String>, String)> {
    let mut events = Vec::new();
    while messages(&events).len() < count {
        let next = next(replies).await.expect("the stream ended");
        assert!(matches!(next, ReplyEvent::Frame(_)), "{next:?}");
        events.push(next);
    }
    messages(&events)
}

/// Waits until the condition holds, while a client waits for the next message.
async fn meanwhile(replies: &mut ReplyStream, is: impl Fn() -> bool) {
    tokio::select! {
        events = next_event(replies) => panic!("{events:?}"),
        () = wait_until(is) => {}
    }
}

/// The next event that is neither a keep-alive nor a cursor.
async fn next_event(replies: &mut ReplyStream) -> Option<ReplyEvent> {
    loop {
        match replies.next().await {
            Some(ReplyEvent::Frame(Frame::Cursor { .. } | Frame::KeepAlive)) => {}
            events => return events,
        }
    }
}

fn numbers(messages: &[(Option<String>, String)]) -> Vec<usize> {
    let number = |message: &String| {
        let (_, rest) = message.split_once("\"data\":")?;
        rest.trim_end_matches('}').parse().ok()
    };
    messages.iter().filter_map(|(_, message)| number(message)).collect()
}

fn ids_differ(messages: &[(Option<String>, String)]) {
    let mut ids: Vec<_> = messages.iter().map(|(id, _)| id.clone().unwrap()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), messages.len(), "{messages:?}");
}

/// The one JSON answer, which is an error of this request.
async fn error_of(replies: ReplyStream, id: i64) -> String {
    let events = receive_all(replies).await;
    let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
    let json = text(json);
    assert!(json.contains(&format!(r#""id":{id},"error""#)), "{json}");
    json
}

fn post(json: &str) -> Body {
    protocol::parse(Bytes::copy_from_slice(json.as_bytes()), &protocol::Limits::default()).unwrap()
}

async fn accepted(node: &World, caller: &Caller, method: Method) {
    let body = Body::One(Message::Notification(Notification::new(method, None)));
    let events = receive_all(node.handle.post(caller, body, None)).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Accepted)]), "{events:?}");
}

#[actix_rt::test]
async fn a_stream_continues_on_its_connection_when_its_owner_is_killed() {
    for revision in REVISIONS {
        let [mut owner, other] = Common::default().nodes().await;
        let caller = owner.session_of(revision).await;
        let mut replies = listening(&other, &caller).await;
        wait_until(|| links(&other) == 1).await;
        for number in 0..5 {
            says(&other, number).await;
        }
        let mut seen = some(&mut replies, 5).await;
        let died = Instant::now();
        owner.kill();
        // The session is claimed for an open stream, without a request.
        meanwhile(&mut replies, || links(&other) == 2).await;
        for number in 5..10 {
            says(&other, number).await;
        }
        seen.extend(some(&mut replies, 1).await);
        let dark = died.elapsed();
        seen.extend(some(&mut replies, 4).await);
        assert_eq!(numbers(&seen), (0..10).collect::<Vec<_>>(), "{revision}");
        ids_differ(&seen);
        assert!(dark < Duration::from_secs(1), "{revision}: dark for {dark:?}");

        // The client received exactly the events of the log.
        let after = seen[0].0.clone();
        let mut resumed = other.handle.listen(&caller, after);
        assert!(matches!(next(&mut resumed).await, Some(ReplyEvent::Open { .. })));
        assert_eq!(some(&mut resumed, 9).await, seen[1..]);
        // The newer stream has replaced it, and it ends in order.
        assert!(messages(&receive_all(replies).await).is_empty());
    }
}

#[actix_rt::test]
async fn a_stream_outlives_two_owners_in_a_row() {
    let [mut first, mut second, last] =
        Common { care: always(), ..Common::default() }.nodes().await;
    let caller = first.session_of("2025-11-25").await;
    let mut replies = listening(&last, &caller).await;
    let mut elsewhere = listening(&second, &caller).await;
    wait_until(|| links(&last) == 1).await;
    // The event goes to the newest stream.
    says(&last, 0).await;
    some(&mut elsewhere, 1).await;
    first.kill();
    meanwhile(&mut replies, || links(&last) == 2).await;
    drop(elsewhere);
    second.check_call(&caller, 1).await;
    let owners = (second.handle.sessions(), last.handle.sessions());
    assert!(owners == (1, 0) || owners == (0, 1), "{owners:?}");
    second.kill();
    last.check_call(&caller, 2).await;
    says(&last, 1).await;
    assert_eq!(numbers(&some(&mut replies, 1).await), [1]);
    assert_eq!(last.handle.sessions(), 1);
}

#[actix_rt::test]
async fn a_call_that_may_run_twice_continues_on_the_same_stream() {
    for revision in REVISIONS {
        let common = Common { care: always(), ..Common::default() };
        let [mut owner, other] = common.nodes().await;
        let caller = owner.session_of(revision).await;
        let mut replies = other.call(&caller, 1, "steps");
        assert!(matches!(next(&mut replies).await, Some(ReplyEvent::Open { .. })));
        let mut seen = some(&mut replies, STEPS).await;
        owner.kill();
        seen.extend(some(&mut replies, STEPS).await);
        other.script.gate.notify_one();
        let rest = receive_all(replies).await;
        assert!(rest.iter().all(|events| matches!(events, ReplyEvent::Frame(_))), "{rest:?}");
        seen.extend(messages(&rest));
        ids_differ(&seen);
        assert_eq!(seen.len(), 2 * STEPS + 1, "{revision}: {seen:?}");
        assert_eq!(seen.last().unwrap().1, r#"{"jsonrpc":"2.0","id":1,"result":{"done":true}}"#);
        assert_eq!(other.script.requests.load(Ordering::SeqCst), 2);
    }
}

#[actix_rt::test]
async fn a_call_that_may_not_run_twice_ends_with_one_error_on_its_stream() {
    for revision in REVISIONS {
        let [mut owner, other] = Common::default().nodes().await;
        let caller = owner.session_of(revision).await;
        let mut replies = other.call(&caller, 1, "steps");
        assert!(matches!(next(&mut replies).await, Some(ReplyEvent::Open { .. })));
        let mut seen = some(&mut replies, STEPS).await;
        owner.kill();
        let rest = receive_all(replies).await;
        assert!(rest.iter().all(|events| matches!(events, ReplyEvent::Frame(_))), "{rest:?}");
        seen.extend(messages(&rest));
        ids_differ(&seen);
        assert_eq!(seen.len(), STEPS + 1, "{revision}: {seen:?}");
        assert!(seen.last().unwrap().1.contains(r#""id":1,"error""#), "{seen:?}");
        // Meanwhile the server received only `tools/list`.
        assert!(calls(&other) == 1, "{revision}");
    }
}

/// The number of tool calls that the servers received.
fn calls(node: &World) -> usize {
    node.script.calls.load(Ordering::SeqCst)
}

#[actix_rt::test]
async fn a_call_without_any_event_runs_again_or_ends_with_one_error() {
    for (care, made) in [(always(), 2), (Care::default(), 1)] {
        let [mut owner, other] = Common { care, ..Common::default() }.nodes().await;
        let caller = owner.session_of("2025-11-25").await;
        let mut replies = other.call(&caller, 7, "later");
        meanwhile(&mut replies, || calls(&other) == 1).await;
        owner.kill();
        if made == 1 {
            let error = error_of(replies, 7).await;
            assert!(error.contains("was lost"), "{error}");
        } else {
            meanwhile(&mut replies, || calls(&other) == 2).await;
            other.script.gate.notify_one();
            let events = receive_all(replies).await;
            let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else {
                panic!("{events:?}")
            };
            assert!(text(json).contains(r#""late":true"#), "{events:?}");
        }
        assert_eq!(calls(&other), made);
        other.check_call(&caller, 8).await;
    }
}

#[actix_rt::test]
async fn a_batch_without_any_event_ends_with_an_error_for_each_request() {
    let [mut owner, other] = Common::default().nodes().await;
    let caller = owner.session_of("2025-03-26").await;
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}},
        {"jsonrpc":"2.0","method":"notifications/roots/list_changed"},
        {"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"hang"}}]"#;
    let mut replies = other.handle.post(&caller, post(batch), None);
    meanwhile(&mut replies, || calls(&other) == 2).await;
    owner.kill();
    let events = receive_all(replies).await;
    let [ReplyEvent::Answer(Answer::Array(errors))] = &events[..] else { panic!("{events:?}") };
    let errors: Vec<_> = errors.iter().map(text).collect();
    assert!(errors[0].contains("\"id\":1,") && errors[1].contains("\"id\":\"two\","), "{errors:?}");
    assert_eq!(errors.len(), 2);
    other.check_call(&caller, 3).await;
}

#[actix_rt::test]
async fn every_request_after_a_death_is_handled_by_the_node_that_receives_it() {
    let [mut owner, one, other] = Common { care: always(), ..Common::default() }.nodes().await;
    let mut callers = Vec::new();
    for _ in 0..4 {
        callers.push(owner.session_of("2025-11-25").await);
    }
    // One session with a cached location, and others without.
    one.check_call(&callers[0], 1).await;
    owner.kill();
    one.check_call(&callers[0], 2).await;
    accepted(&one, &callers[1], Method::RootsListChanged).await;
    listening(&one, &callers[2]).await;
    let events = receive_all(one.handle.delete(&callers[3])).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Ended)]), "{events:?}");
    for caller in &callers[..3] {
        other.check_call(caller, 3).await;
    }
    let events = receive_all(other.call(&callers[3], 4, "echo")).await;
    assert!(
        matches!(&events[..], [ReplyEvent::Answer(Answer::Refused(Refusal::UnknownSession))]),
        "{events:?}"
    );
    assert_eq!((one.handle.sessions(), other.handle.sessions()), (3, 0));
}

#[actix_rt::test]
async fn many_clients_at_two_nodes_take_a_session_over_once() {
    let [mut owner, one, other] = Common { care: always(), ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    one.check_call(&caller, 1).await;
    owner.kill();
    let mut calls = Vec::new();
    for id in 0..20 {
        let node = if id % 2 == 0 { &one } else { &other };
        calls.push(node.call(&caller, 100 + id, "echo"));
    }
    for call in calls {
        let events = receive_all(call).await;
        let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
        assert!(text(json).contains(r#""ok":true"#), "{events:?}");
    }
    assert_eq!(one.handle.sessions() + other.handle.sessions(), 1);
}

#[actix_rt::test]
async fn a_posted_request_whose_client_left_outlives_the_owner() {
    let [mut owner, other] = Common { care: always(), ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    other.check_call(&caller, 1).await;
    owner.kill();
    drop(other.call(&caller, 2, "later"));
    wait_until(|| calls(&other) == 2).await;
}

#[actix_rt::test]
async fn a_client_of_a_killed_owner_gets_an_error_when_no_node_can_take_the_session_over() {
    // Several times as long as the others take to find the owner dead and to attempt the take-over.
    let settings = Settings { hold_ms: 2_000, sessions_max: 1, ..Settings::default() };
    let [mut owner, other] = Common { settings, ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    // The node has no slot for another session.
    let _own = other.session_of("2025-11-25").await;
    let mut stream = listening(&other, &caller).await;
    let mut call = other.call(&caller, 1, "hang");
    meanwhile(&mut call, || calls(&other) == 1).await;
    let died = Instant::now();
    owner.kill();
    let error = error_of(call, 1).await;
    assert!(error.contains("sessions.sessions_max") && error.contains("try again"), "{error}");
    let held = died.elapsed();
    assert!(held >= Duration::from_millis(2_000), "failed after {held:?}");
    // The stream was cut, so that the client resumes it.
    let events = next_event(&mut stream).await;
    assert!(matches!(events, Some(ReplyEvent::Abort)), "{events:?}");
    let body = Body::One(Message::Notification(Notification::new(Method::RootsListChanged, None)));
    let events = receive_all(other.handle.post(&caller, body, None)).await;
    assert!(
        matches!(&events[..], [ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable))]),
        "{events:?}"
    );
}

#[actix_rt::test]
async fn a_request_is_held_until_a_node_has_a_free_slot() {
    let settings = Settings { sessions_max: 1, ..Settings::default() };
    let common = Common { settings, care: always(), ..Common::default() };
    let [mut owner, other] = common.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let own = other.session_of("2025-11-25").await;
    let mut stream = listening(&other, &caller).await;
    owner.kill();
    let held = other.call(&caller, 1, "echo");
    let reading = actix_rt::spawn(receive_all(held));
    tokio::time::sleep(crate::support::nodes::MOMENT).await;
    assert!(!reading.is_finished(), "the request is held");
    let events = receive_all(other.handle.delete(&own)).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Ended)]), "{events:?}");
    let events = reading.await.unwrap();
    let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
    assert!(text(json).contains(r#""ok":true"#), "{events:?}");
    wait_until(|| links(&other) == 3).await;
    says(&other, 5).await;
    assert_eq!(numbers(&some(&mut stream, 1).await), [5]);
}

#[actix_rt::test]
async fn no_more_requests_are_held_than_the_bound() {
    let settings = Settings { held_max: 1, sessions_max: 1, ..Settings::default() };
    let [mut owner, other] = Common { settings, ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let _own = other.session_of("2025-11-25").await;
    owner.kill();
    let mut held = other.call(&caller, 1, "echo");
    let holding = tokio::time::timeout(crate::support::nodes::MOMENT, held.next());
    assert!(holding.await.is_err(), "the request is held");
    let began = Instant::now();
    error_of(other.call(&caller, 2, "echo"), 2).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    drop(held);
}
