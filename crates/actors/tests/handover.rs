//! A session leaves its owner without a death: its node drains, the session falls asleep, or its
//! node was suspended and resumes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::nodes::{Common, Node};
use crate::support::{FLOOD, STEPS, World, messages, next, receive_all, text, wait_until};
use actors::{Answer, Caller, Refusal, ReplyEvent, ReplyStream, Settings};
use store::{Expected, Incarnation, Memory, Owner, RecordStatus, Store};

async fn status(node: &World, caller: &Caller) -> RecordStatus {
    node.store.read(&caller.session).await.unwrap().unwrap().status
}

/// Starts to drain a node.
fn drain(node: &Node, grace: Duration) -> actix_rt::task::JoinHandle<Duration> {
    let handle = node.handle.clone();
    actix_rt::spawn(async move {
        let began = Instant::now();
        handle.drain(grace).await;
        began.elapsed()
    })
}

fn sleepers() -> Settings {
    let mut settings = Settings::default();
    settings.session.sleep_after_secs = 1;
    settings
}

async fn ok(replies: ReplyStream) {
    let events = receive_all(replies).await;
    let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
    assert!(text(json).contains("\"ok\":true"), "{events:?}");
}

#[actix_rt::test]
async fn idle_sessions_of_a_draining_node_are_released_at_once_and_work_elsewhere() {
    let [owner, other] = Common::default().nodes().await;
    let mut callers = Vec::new();
    for _ in 0..20 {
        callers.push(owner.session_of("2025-11-25").await);
    }
    let took = drain(&owner, Duration::from_secs(30)).await.unwrap();
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(owner.handle.sessions(), 0);
    for caller in &callers {
        assert_eq!(status(&other, caller).await, RecordStatus::Released);
        other.check_call(caller, 1).await;
        // The draining node still serves requests, by sessions on other nodes, and claims none.
        owner.check_call(caller, 2).await;
    }
    assert_eq!((owner.handle.sessions(), other.handle.sessions()), (0, 20));
}

#[actix_rt::test]
async fn a_draining_node_has_others_claim_ownerless_sessions() {
    let [owner, other] = Common::default().nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    drain(&owner, Duration::from_secs(30)).await.unwrap();
    owner.check_call(&caller, 1).await;
    assert_eq!((owner.handle.sessions(), other.handle.sessions()), (0, 1));
}

#[actix_rt::test]
async fn a_call_in_flight_finishes_before_its_session_is_released() {
    let [owner, other] = Common::default().nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let call = actix_rt::spawn(receive_all(other.call(&caller, 1, "later")));
    wait_until(|| other.script.requests.load(Ordering::SeqCst) == 1).await;
    let draining = drain(&owner, Duration::from_secs(30));
    tokio::time::sleep(crate::support::nodes::MOMENT).await;
    assert!(!draining.is_finished() && !call.is_finished());
    other.script.gate.notify_one();
    let events = call.await.unwrap();
    let late = match &events[..] {
        [ReplyEvent::Answer(Answer::Json(json))] => text(json),
        events => messages(events).pop().unwrap().1,
    };
    assert!(late.contains(r#""late":true"#), "{late}");
    draining.await.unwrap();
    assert_eq!(status(&other, &caller).await, RecordStatus::Released);
    other.check_call(&caller, 2).await;
}

#[actix_rt::test]
async fn a_call_that_outlasts_the_time_to_drain_ends_with_an_error_that_says_why() {
    let [owner, other] = Common::default().nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let call = actix_rt::spawn(receive_all(other.call(&caller, 1, "hang")));
    wait_until(|| other.script.requests.load(Ordering::SeqCst) == 1).await;
    let took = drain(&owner, Duration::from_millis(100)).await.unwrap();
    assert!(took < Duration::from_secs(2), "{took:?}");
    let events = call.await.unwrap();
    let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
    let json = text(json);
    assert!(json.contains(r#""id":1,"error""#) && json.contains("the node stopped"), "{json}");
    assert_eq!(status(&other, &caller).await, RecordStatus::Released);
    other.check_call(&caller, 2).await;
}

#[actix_rt::test]
async fn a_stream_whose_owner_drains_continues_on_the_connection_of_another_node() {
    let [owner, other] = Common::default().nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let mut stream = other.call(&caller, 1, "steps");
    let mut events = Vec::new();
    while messages(&events).len() < STEPS {
        events.push(next(&mut stream).await.expect("the stream ended"));
    }
    let draining = drain(&owner, Duration::from_secs(30));
    other.script.gate.notify_one();
    events.extend(receive_all(stream).await);
    let messages = messages(&events);
    assert_eq!(messages.len(), STEPS + 1, "{messages:?}");
    assert!(messages.last().unwrap().1.contains(r#""done":true"#));
    draining.await.unwrap();

    // Replayed events are the events that were sent.
    let after = messages[0].0.clone();
    let again = receive_all(other.handle.listen(&caller, after)).await;
    assert_eq!(crate::support::messages(&again), messages[1..]);
}

#[actix_rt::test]
async fn sessions_under_load_move_between_nodes_without_loss() {
    let [one, other] = Common::default().nodes().await;
    let caller = one.session_of("2025-11-25").await;
    let mut id = 0;
    let mut floods = Vec::new();
    for _ in 0..5 {
        id += 1;
        floods.push(actix_rt::spawn(receive_all(other.call(&caller, id, "flood"))));
    }
    let draining = drain(&one, Duration::from_secs(30));
    let began = Instant::now();
    while !draining.is_finished() || began.elapsed() < crate::support::nodes::MOMENT {
        id += 2;
        let (here, there) = (one.call(&caller, id, "echo"), other.call(&caller, id + 1, "echo"));
        tokio::join!(ok(here), ok(there));
    }
    draining.await.unwrap();
    for flood in floods {
        let messages = messages(&flood.await.unwrap());
        assert_eq!(messages.len(), FLOOD + 1, "{messages:?}");
        assert!(messages.last().unwrap().1.contains("done"), "{messages:?}");
    }
    assert_eq!((one.handle.sessions(), other.handle.sessions()), (0, 1));
}

#[actix_rt::test]
async fn an_idle_session_falls_asleep_and_is_restored_at_any_node() {
    let common = Common { settings: sleepers(), care: stops(), ..Common::default() };
    let [owner, other] = common.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    owner.check_call(&caller, 1).await;
    wait_until(|| owner.handle.sessions() == 0).await;
    assert_eq!(status(&owner, &caller).await, RecordStatus::Released);
    other.check_call(&caller, 2).await;
    assert_eq!(other.handle.sessions(), 1);
    wait_until(|| other.handle.sessions() == 0).await;
    owner.check_call(&caller, 3).await;
}

/// Stops an idle server at once.
fn stops() -> actors::Care {
    actors::Care { idle_stop_secs: Some(0), ..actors::Care::default() }
}

#[actix_rt::test]
async fn a_cluster_of_one_releases_idle_sessions_and_restores_them() {
    let world = World::caring(sleepers(), stops());
    let caller = world.session().await;
    let mut flood = Vec::new();
    for events in receive_all(world.call(&caller, 1, "flood")).await {
        flood.push(events);
    }
    let flood = messages(&flood);
    world.wait_until_empty().await;
    // Events that were sent before are replayed on resume.
    let after = flood[10].0.clone();
    let events = receive_all(world.handle.listen(&caller, after)).await;
    assert_eq!(messages(&events), flood[11..]);
    world.check_call(&caller, 2).await;
    assert_eq!(world.handle.sessions(), 1);
    world.wait_until_empty().await;
    // A sleeping session rejects other principals and is not woken by them.
    let foreign = Caller { principal: tenants::Principal::named("mallory"), ..caller.clone() };
    let events = receive_all(world.call(&foreign, 3, "echo")).await;
    assert!(
        matches!(&events[..], [ReplyEvent::Answer(Answer::Refused(Refusal::UnknownSession))]),
        "{events:?}"
    );
    assert_eq!(world.handle.sessions(), 0);
    let events = receive_all(world.handle.delete(&caller)).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Ended)]), "{events:?}");
    world.wait_until_empty().await;
    assert_eq!(status(&world, &caller).await, RecordStatus::Ended);
}

#[actix_rt::test]
async fn concurrent_requests_restore_a_sleeping_session_once() {
    let world = World::caring(sleepers(), stops());
    let caller = world.session().await;
    world.wait_until_empty().await;
    let before = world.store.read(&caller.session).await.unwrap().unwrap().owner.token;
    let mut calls = Vec::new();
    for id in 0..30 {
        calls.push(actix_rt::spawn(ok(world.call(&caller, id, "echo"))));
    }
    for call in calls {
        call.await.unwrap();
    }
    let after = world.store.read(&caller.session).await.unwrap().unwrap().owner.token;
    assert_eq!(after.counter, before.counter + 1);
    assert_eq!(world.script.opened.load(Ordering::SeqCst), 2, "one server each time");
}

#[actix_rt::test]
async fn a_sleeping_session_ends_after_the_rest_of_its_idle_time() {
    let mut settings = sleepers();
    settings.session.idle_secs = 2;
    settings.tombstone_secs = 0;
    let world = World::caring(settings, stops());
    let caller = world.session().await;
    world.wait_until_empty().await;
    assert_eq!(status(&world, &caller).await, RecordStatus::Released);
    let began = Instant::now();
    while world.store.read(&caller.session).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(began.elapsed() < Duration::from_secs(3));
    }
    assert!(began.elapsed() > Duration::from_millis(500), "{:?}", began.elapsed());
}

#[actix_rt::test]
async fn an_owner_that_was_replaced_while_suspended_stops_at_its_next_write() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let common = Common { store: Some(Arc::clone(&store)), ..Common::default() };
    let [owner, other] = common.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    other.check_call(&caller, 1).await;
    // Another node claimed the session while the owner's process was suspended.
    let held = store.read(&caller.session).await.unwrap().unwrap().owner;
    let new = Owner { token: held.token.next(7), node: Incarnation(7) };
    let expected = Expected::Token(held.token);
    store.claim(&caller.session, expected, new, None, Duration::from_secs(60)).await.unwrap();
    // The owner appends to the log and is then deposed. The call goes to the new owner, which is
    // not a real node.
    let events = receive_all(other.call(&caller, 2, "flood")).await;
    let response: String = match &events[..] {
        [ReplyEvent::Answer(Answer::Json(json))] => text(json),
        events => messages(events).pop().unwrap().1,
    };
    assert!(response.contains(r#""id":2,"error""#) && response.contains("was lost"), "{response}");
    wait_until(|| owner.handle.sessions() + other.handle.sessions() == 1).await;
    other.check_call(&caller, 3).await;
}
