//! A session leaves its owner without a death: its node drains, it falls asleep, or its node
//! was away and comes back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::support::nodes::{Common, Node};
use crate::support::{FLOOD, STEPS, World, all, messages, next, text, until};
use actors::{Answer, Caller, Refusal, ReplyEvent, ReplyStream, Settings};
use store::{Expected, Incarnation, Memory, Owner, RecordStatus, Store};

async fn status(node: &World, caller: &Caller) -> RecordStatus {
    node.store.read(&caller.session).await.unwrap().unwrap().status
}

/// Begins to drain a node.
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
    let told = all(replies).await;
    let [ReplyEvent::Answer(Answer::Json(json))] = &told[..] else { panic!("{told:?}") };
    assert!(text(json).contains("\"ok\":true"), "{told:?}");
}

#[actix_rt::test]
async fn idle_sessions_of_a_draining_node_are_given_up_at_once_and_work_elsewhere() {
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
        other.works(caller, 1).await;
        // The draining node serves on, by the others' sessions, and claims none.
        owner.works(caller, 2).await;
    }
    assert_eq!((owner.handle.sessions(), other.handle.sessions()), (0, 20));
}

#[actix_rt::test]
async fn a_draining_node_sends_others_to_claim_what_is_nobodys() {
    let [owner, other] = Common::default().nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    drain(&owner, Duration::from_secs(30)).await.unwrap();
    owner.works(&caller, 1).await;
    assert_eq!((owner.handle.sessions(), other.handle.sessions()), (0, 1));
}

#[actix_rt::test]
async fn a_call_in_flight_is_finished_before_its_session_goes() {
    let [owner, other] = Common::default().nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let call = actix_rt::spawn(all(other.call(&caller, 1, "later")));
    until(|| other.script.requests.load(Ordering::SeqCst) == 1).await;
    let draining = drain(&owner, Duration::from_secs(30));
    tokio::time::sleep(crate::support::nodes::MOMENT).await;
    assert!(!draining.is_finished() && !call.is_finished());
    other.script.gate.notify_one();
    let told = call.await.unwrap();
    let late = match &told[..] {
        [ReplyEvent::Answer(Answer::Json(json))] => text(json),
        told => messages(told).pop().unwrap().1,
    };
    assert!(late.contains(r#""late":true"#), "{late}");
    draining.await.unwrap();
    assert_eq!(status(&other, &caller).await, RecordStatus::Released);
    other.works(&caller, 2).await;
}

#[actix_rt::test]
async fn a_call_that_outlasts_the_time_to_drain_ends_with_an_error_that_says_why() {
    let [owner, other] = Common::default().nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let call = actix_rt::spawn(all(other.call(&caller, 1, "hang")));
    until(|| other.script.requests.load(Ordering::SeqCst) == 1).await;
    let took = drain(&owner, Duration::from_millis(100)).await.unwrap();
    assert!(took < Duration::from_secs(2), "{took:?}");
    let told = call.await.unwrap();
    let [ReplyEvent::Answer(Answer::Json(json))] = &told[..] else { panic!("{told:?}") };
    let json = text(json);
    assert!(json.contains(r#""id":1,"error""#) && json.contains("the node stopped"), "{json}");
    assert_eq!(status(&other, &caller).await, RecordStatus::Released);
    other.works(&caller, 2).await;
}

#[actix_rt::test]
async fn a_stream_whose_owner_drains_goes_on_upon_the_connection_of_another_node() {
    let [owner, other] = Common::default().nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let mut stream = other.call(&caller, 1, "steps");
    let mut told = Vec::new();
    while messages(&told).len() < STEPS {
        told.push(next(&mut stream).await.expect("the stream ended"));
    }
    let draining = drain(&owner, Duration::from_secs(30));
    other.script.gate.notify_one();
    told.extend(all(stream).await);
    let messages = messages(&told);
    assert_eq!(messages.len(), STEPS + 1, "{messages:?}");
    assert!(messages.last().unwrap().1.contains(r#""done":true"#));
    draining.await.unwrap();

    // What was told is still told to whoever comes back for it.
    let after = messages[0].0.clone();
    let again = all(other.handle.listen(&caller, after)).await;
    assert_eq!(crate::support::messages(&again), messages[1..]);
}

#[actix_rt::test]
async fn sessions_that_are_called_all_the_time_go_from_node_to_node_without_loss() {
    let [one, other] = Common::default().nodes().await;
    let caller = one.session_of("2025-11-25").await;
    let mut id = 0;
    let mut floods = Vec::new();
    for _ in 0..5 {
        id += 1;
        floods.push(actix_rt::spawn(all(other.call(&caller, id, "flood"))));
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
async fn a_session_that_is_quiet_falls_asleep_and_wakes_wherever_it_is_touched() {
    let common = Common { settings: sleepers(), care: stops(), ..Common::default() };
    let [owner, other] = common.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    owner.works(&caller, 1).await;
    until(|| owner.handle.sessions() == 0).await;
    assert_eq!(status(&owner, &caller).await, RecordStatus::Released);
    other.works(&caller, 2).await;
    assert_eq!(other.handle.sessions(), 1);
    until(|| other.handle.sessions() == 0).await;
    owner.works(&caller, 3).await;
}

/// A server that has nothing to do is stopped at once.
fn stops() -> actors::Care {
    actors::Care { idle_stop_secs: Some(0), ..actors::Care::default() }
}

#[actix_rt::test]
async fn a_node_on_its_own_lets_sessions_sleep_and_wakes_them() {
    let world = World::caring(sleepers(), stops());
    let caller = world.session().await;
    let mut flood = Vec::new();
    for told in all(world.call(&caller, 1, "flood")).await {
        flood.push(told);
    }
    let flood = messages(&flood);
    world.is_empty().await;
    // What was told before is told again to whoever comes back for it.
    let after = flood[10].0.clone();
    let told = all(world.handle.listen(&caller, after)).await;
    assert_eq!(messages(&told), flood[11..]);
    world.works(&caller, 2).await;
    assert_eq!(world.handle.sessions(), 1);
    world.is_empty().await;
    // Nobody else is let in while it sleeps, and nobody wakes it.
    let foreign = Caller { principal: tenants::Principal::named("mallory"), ..caller.clone() };
    let told = all(world.call(&foreign, 3, "echo")).await;
    assert!(
        matches!(&told[..], [ReplyEvent::Answer(Answer::Refused(Refusal::UnknownSession))]),
        "{told:?}"
    );
    assert_eq!(world.handle.sessions(), 0);
    let told = all(world.handle.delete(&caller)).await;
    assert!(matches!(&told[..], [ReplyEvent::Answer(Answer::Ended)]), "{told:?}");
    world.is_empty().await;
    assert_eq!(status(&world, &caller).await, RecordStatus::Ended);
}

#[actix_rt::test]
async fn many_who_touch_a_sleeping_session_wake_it_once() {
    let world = World::caring(sleepers(), stops());
    let caller = world.session().await;
    world.is_empty().await;
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
async fn a_session_sleeps_with_what_is_left_of_its_time_and_is_then_over() {
    let mut settings = sleepers();
    settings.session.idle_secs = 2;
    settings.tombstone_secs = 0;
    let world = World::caring(settings, stops());
    let caller = world.session().await;
    world.is_empty().await;
    assert_eq!(status(&world, &caller).await, RecordStatus::Released);
    let began = Instant::now();
    while world.store.read(&caller.session).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(began.elapsed() < Duration::from_secs(3));
    }
    assert!(began.elapsed() > Duration::from_millis(500), "{:?}", began.elapsed());
}

#[actix_rt::test]
async fn an_owner_that_was_replaced_while_it_was_away_stops_at_its_next_word() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let common = Common { store: Some(Arc::clone(&store)), ..Common::default() };
    let [owner, other] = common.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    other.works(&caller, 1).await;
    // Somebody took it up while the owner's process stood still.
    let held = store.read(&caller.session).await.unwrap().unwrap().owner;
    let new = Owner { token: held.token.next(7), node: Incarnation(7) };
    let expected = Expected::Token(held.token);
    store.claim(&caller.session, expected, new, None, Duration::from_secs(60)).await.unwrap();
    // It says something that needs the log, and learns of it; the call goes to whoever takes
    // the session up from that claimant, which is no node at all.
    let told = all(other.call(&caller, 2, "flood")).await;
    let said: String = match &told[..] {
        [ReplyEvent::Answer(Answer::Json(json))] => text(json),
        told => messages(told).pop().unwrap().1,
    };
    assert!(said.contains(r#""id":2,"error""#) && said.contains("was lost"), "{said}");
    until(|| owner.handle.sessions() + other.handle.sessions() == 1).await;
    other.works(&caller, 3).await;
}
