//! A node is killed, and its sessions go on elsewhere: what clients are told on connections
//! that outlive it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::nodes::Common;
use crate::support::{STEPS, World, all, messages, next, text, until};
use actors::{Answer, Caller, Care, Frame, Refusal, ReplyEvent, ReplyStream, Settings};
use backends::LinkEvent;
use bytes::Bytes;
use conversation::Rerun;
use protocol::{Body, Message, Method, Notification};

const REVISIONS: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];

/// Whoever calls before a death is noticed may have been heard by the dead, so a test in
/// which that is so lets its calls be made twice.
fn always() -> Care {
    Care { rerun: Rerun::Always, ..Care::default() }
}

/// What the server says to nobody in particular, as soon as there is a link to say it on.
/// Of a killed node's links, somebody may still hold an end.
async fn says(node: &World, number: usize) {
    let params = format!(r#"{{"level":"error","data":{number}}}"#);
    let message = Notification::new(Method::LogMessage, Some(params.as_bytes())).into();
    let sender = node.script.senders.lock().unwrap().last().cloned().unwrap();
    sender.send(LinkEvent::Message { message, about: None }).await.unwrap();
}

/// How many links were opened, on all nodes.
fn links(node: &World) -> usize {
    node.script.senders.lock().unwrap().len()
}

/// A stream that is told what the server says to nobody in particular.
async fn listening(node: &World, caller: &Caller) -> ReplyStream {
    let mut replies = node.handle.listen(caller, None);
    let told = next(&mut replies).await;
    assert!(matches!(told, Some(ReplyEvent::Open { welcome: false, .. })), "{told:?}");
    replies
}

/// Reads until there are so many messages; there may be no second head, and nothing that
/// is not for clients.
async fn some(replies: &mut ReplyStream, count: usize) -> Vec<(Option<String>, String)> {
    let mut told = Vec::new();
    while messages(&told).len() < count {
        let next = next(replies).await.expect("the stream ended");
        assert!(matches!(next, ReplyEvent::Frame(_)), "{next:?}");
        told.push(next);
    }
    messages(&told)
}

/// Waits until something is so, while a client waits for the next message.
async fn meanwhile(replies: &mut ReplyStream, is: impl Fn() -> bool) {
    tokio::select! {
        told = told(replies) => panic!("{told:?}"),
        () = until(is) => {}
    }
}

/// The next thing that is more than a sign of life or a cursor.
async fn told(replies: &mut ReplyStream) -> Option<ReplyEvent> {
    loop {
        match replies.next().await {
            Some(ReplyEvent::Frame(Frame::Cursor { .. } | Frame::KeepAlive)) => {}
            told => return told,
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
    let told = all(replies).await;
    let [ReplyEvent::Answer(Answer::Json(json))] = &told[..] else { panic!("{told:?}") };
    let json = text(json);
    assert!(json.contains(&format!(r#""id":{id},"error""#)), "{json}");
    json
}

fn post(json: &str) -> Body {
    protocol::parse(Bytes::copy_from_slice(json.as_bytes()), &protocol::Limits::default()).unwrap()
}

async fn accepted(node: &World, caller: &Caller, method: Method) {
    let body = Body::One(Message::Notification(Notification::new(method, None)));
    let told = all(node.handle.post(caller, body, None)).await;
    assert!(matches!(&told[..], [ReplyEvent::Answer(Answer::Accepted)]), "{told:?}");
}

#[actix_rt::test]
async fn a_stream_goes_on_where_it_is_when_its_owner_is_killed() {
    for revision in REVISIONS {
        let [mut owner, other] = Common::default().nodes().await;
        let caller = owner.session_of(revision).await;
        let mut replies = listening(&other, &caller).await;
        until(|| links(&other) == 1).await;
        for number in 0..5 {
            says(&other, number).await;
        }
        let mut seen = some(&mut replies, 5).await;
        let died = Instant::now();
        owner.kill();
        // It is claimed because somebody listens, not because somebody asks.
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

        // What was told is what is written, no more and no less.
        let after = seen[0].0.clone();
        let mut resumed = other.handle.listen(&caller, after);
        assert!(matches!(next(&mut resumed).await, Some(ReplyEvent::Open { .. })));
        assert_eq!(some(&mut resumed, 9).await, seen[1..]);
        // The newer one has displaced it, in order.
        assert!(messages(&all(replies).await).is_empty());
    }
}

#[actix_rt::test]
async fn a_stream_outlives_two_owners_in_a_row() {
    let [mut first, mut second, last] =
        Common { care: always(), ..Common::default() }.nodes().await;
    let caller = first.session_of("2025-11-25").await;
    let mut replies = listening(&last, &caller).await;
    let mut elsewhere = listening(&second, &caller).await;
    until(|| links(&last) == 1).await;
    // To the newest stream.
    says(&last, 0).await;
    some(&mut elsewhere, 1).await;
    first.kill();
    meanwhile(&mut replies, || links(&last) == 2).await;
    drop(elsewhere);
    second.works(&caller, 1).await;
    let owners = (second.handle.sessions(), last.handle.sessions());
    assert!(owners == (1, 0) || owners == (0, 1), "{owners:?}");
    second.kill();
    last.works(&caller, 2).await;
    says(&last, 1).await;
    assert_eq!(numbers(&some(&mut replies, 1).await), [1]);
    assert_eq!(last.handle.sessions(), 1);
}

#[actix_rt::test]
async fn a_call_that_may_be_made_twice_goes_on_upon_the_same_stream() {
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
        let rest = all(replies).await;
        assert!(rest.iter().all(|told| matches!(told, ReplyEvent::Frame(_))), "{rest:?}");
        seen.extend(messages(&rest));
        ids_differ(&seen);
        assert_eq!(seen.len(), 2 * STEPS + 1, "{revision}: {seen:?}");
        assert_eq!(seen.last().unwrap().1, r#"{"jsonrpc":"2.0","id":1,"result":{"done":true}}"#);
        assert_eq!(other.script.requests.load(Ordering::SeqCst), 2);
    }
}

#[actix_rt::test]
async fn a_call_that_may_not_be_made_twice_ends_with_one_error_on_its_stream() {
    for revision in REVISIONS {
        let [mut owner, other] = Common::default().nodes().await;
        let caller = owner.session_of(revision).await;
        let mut replies = other.call(&caller, 1, "steps");
        assert!(matches!(next(&mut replies).await, Some(ReplyEvent::Open { .. })));
        let mut seen = some(&mut replies, STEPS).await;
        owner.kill();
        let rest = all(replies).await;
        assert!(rest.iter().all(|told| matches!(told, ReplyEvent::Frame(_))), "{rest:?}");
        seen.extend(messages(&rest));
        ids_differ(&seen);
        assert_eq!(seen.len(), STEPS + 1, "{revision}: {seen:?}");
        assert!(seen.last().unwrap().1.contains(r#""id":1,"error""#), "{seen:?}");
        // What its server was asked meanwhile is which tools it has.
        assert!(calls(&other) == 1, "{revision}");
    }
}

/// How many calls of tools the servers heard.
fn calls(node: &World) -> usize {
    node.script.calls.load(Ordering::SeqCst)
}

#[actix_rt::test]
async fn a_call_that_nothing_was_said_of_is_made_again_or_ends_with_one_error() {
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
            let told = all(replies).await;
            let [ReplyEvent::Answer(Answer::Json(json))] = &told[..] else { panic!("{told:?}") };
            assert!(text(json).contains(r#""late":true"#), "{told:?}");
        }
        assert_eq!(calls(&other), made);
        other.works(&caller, 8).await;
    }
}

#[actix_rt::test]
async fn a_batch_that_nothing_was_said_of_ends_with_an_error_for_each_request() {
    let [mut owner, other] = Common::default().nodes().await;
    let caller = owner.session_of("2025-03-26").await;
    let batch = r#"[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}},
        {"jsonrpc":"2.0","method":"notifications/roots/list_changed"},
        {"jsonrpc":"2.0","id":"two","method":"tools/call","params":{"name":"hang"}}]"#;
    let mut replies = other.handle.post(&caller, post(batch), None);
    meanwhile(&mut replies, || calls(&other) == 2).await;
    owner.kill();
    let told = all(replies).await;
    let [ReplyEvent::Answer(Answer::Array(errors))] = &told[..] else { panic!("{told:?}") };
    let errors: Vec<_> = errors.iter().map(text).collect();
    assert!(errors[0].contains("\"id\":1,") && errors[1].contains("\"id\":\"two\","), "{errors:?}");
    assert_eq!(errors.len(), 2);
    other.works(&caller, 3).await;
}

#[actix_rt::test]
async fn whatever_comes_after_a_death_is_done_by_whoever_it_comes_to() {
    let [mut owner, one, other] = Common { care: always(), ..Common::default() }.nodes().await;
    let mut callers = Vec::new();
    for _ in 0..4 {
        callers.push(owner.session_of("2025-11-25").await);
    }
    // Whose location is known, and whose are not.
    one.works(&callers[0], 1).await;
    owner.kill();
    one.works(&callers[0], 2).await;
    accepted(&one, &callers[1], Method::RootsListChanged).await;
    listening(&one, &callers[2]).await;
    let told = all(one.handle.delete(&callers[3])).await;
    assert!(matches!(&told[..], [ReplyEvent::Answer(Answer::Ended)]), "{told:?}");
    for caller in &callers[..3] {
        other.works(caller, 3).await;
    }
    let told = all(other.call(&callers[3], 4, "echo")).await;
    assert!(
        matches!(&told[..], [ReplyEvent::Answer(Answer::Refused(Refusal::UnknownSession))]),
        "{told:?}"
    );
    assert_eq!((one.handle.sessions(), other.handle.sessions()), (3, 0));
}

#[actix_rt::test]
async fn many_clients_at_two_nodes_take_a_session_over_once() {
    let [mut owner, one, other] = Common { care: always(), ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    one.works(&caller, 1).await;
    owner.kill();
    let mut calls = Vec::new();
    for id in 0..20 {
        let node = if id % 2 == 0 { &one } else { &other };
        calls.push(node.call(&caller, 100 + id, "echo"));
    }
    for call in calls {
        let told = all(call).await;
        let [ReplyEvent::Answer(Answer::Json(json))] = &told[..] else { panic!("{told:?}") };
        assert!(text(json).contains(r#""ok":true"#), "{told:?}");
    }
    assert_eq!(one.handle.sessions() + other.handle.sessions(), 1);
}

#[actix_rt::test]
async fn what_a_client_posted_and_did_not_wait_for_outlives_the_owner() {
    let [mut owner, other] = Common { care: always(), ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    other.works(&caller, 1).await;
    owner.kill();
    drop(other.call(&caller, 2, "later"));
    until(|| calls(&other) == 2).await;
}

#[actix_rt::test]
async fn who_leaves_a_killed_owner_gets_a_word_when_nobody_can_take_the_session() {
    let settings = Settings { hold_ms: 300, sessions_max: 1, ..Settings::default() };
    let [mut owner, other] = Common { settings, ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    // It has no room for another.
    let _own = other.session_of("2025-11-25").await;
    let mut stream = listening(&other, &caller).await;
    let mut call = other.call(&caller, 1, "hang");
    meanwhile(&mut call, || calls(&other) == 1).await;
    let died = Instant::now();
    owner.kill();
    let error = error_of(call, 1).await;
    assert!(error.contains("sessions.sessions_max") && error.contains("try again"), "{error}");
    let held = died.elapsed();
    assert!(held >= Duration::from_millis(300), "given up after {held:?}");
    // A client comes back to what broke off.
    let told = told(&mut stream).await;
    assert!(matches!(told, Some(ReplyEvent::Abort)), "{told:?}");
    let body = Body::One(Message::Notification(Notification::new(Method::RootsListChanged, None)));
    let told = all(other.handle.post(&caller, body, None)).await;
    assert!(
        matches!(&told[..], [ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable))]),
        "{told:?}"
    );
}

#[actix_rt::test]
async fn a_request_is_held_until_somebody_has_room() {
    let settings = Settings { sessions_max: 1, ..Settings::default() };
    let common = Common { settings, care: always(), ..Common::default() };
    let [mut owner, other] = common.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let own = other.session_of("2025-11-25").await;
    let mut stream = listening(&other, &caller).await;
    owner.kill();
    let held = other.call(&caller, 1, "echo");
    let reading = actix_rt::spawn(all(held));
    tokio::time::sleep(crate::support::nodes::MOMENT).await;
    assert!(!reading.is_finished(), "it is held");
    let told = all(other.handle.delete(&own)).await;
    assert!(matches!(&told[..], [ReplyEvent::Answer(Answer::Ended)]), "{told:?}");
    let told = reading.await.unwrap();
    let [ReplyEvent::Answer(Answer::Json(json))] = &told[..] else { panic!("{told:?}") };
    assert!(text(json).contains(r#""ok":true"#), "{told:?}");
    until(|| links(&other) == 3).await;
    says(&other, 5).await;
    assert_eq!(numbers(&some(&mut stream, 1).await), [5]);
}

#[actix_rt::test]
async fn no_more_are_held_than_may_be() {
    let settings = Settings { held_max: 1, sessions_max: 1, ..Settings::default() };
    let [mut owner, other] = Common { settings, ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let _own = other.session_of("2025-11-25").await;
    owner.kill();
    let mut held = other.call(&caller, 1, "echo");
    let holding = tokio::time::timeout(crate::support::nodes::MOMENT, held.next());
    assert!(holding.await.is_err(), "it is held");
    let began = Instant::now();
    error_of(other.call(&caller, 2, "echo"), 2).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    drop(held);
}
