//! The creation of sessions, the access to them, and their end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Script, World, next, receive_all, refusal, tenant, wait_until};
use actors::{Answer, Refusal, ReplyEvent, Settings};
use protocol::{Body, Method, Request, SessionId};
use store::RecordStatus;
use tenants::Principal;

#[actix_rt::test]
async fn a_call_is_answered_with_one_json_object() {
    let world = World::new();
    let caller = world.session().await;
    world.check_call(&caller, 1).await;
    world.check_call(&caller, 2).await;
    assert_eq!(world.handle.sessions(), 1);
}

#[actix_rt::test]
async fn a_session_is_recorded_before_its_client_receives_its_id() {
    let world = World::new();
    let mut opened = world.initialize().await.unwrap();
    assert!(world.store.read(&opened.session).await.unwrap().is_none());
    assert!(matches!(
        next(&mut opened.replies).await,
        Some(ReplyEvent::Answer(Answer::Welcome(_)))
    ));
    let record = world.store.read(&opened.session).await.unwrap().unwrap();
    assert_eq!((&*record.tenant, &*record.revision), ("acme", "2025-11-25"));
    assert_eq!(record.status, RecordStatus::Owned);
    assert!(record.initialize.starts_with(b"{\"protocolVersion\""));
}

#[actix_rt::test]
async fn a_failed_handshake_leaves_nothing_behind() {
    let world = World::new();
    let request = Request::new(1.into(), Method::ToolsCall, None);
    let opened =
        world.handle.initialize(&world.tenant, &world.principal, request, None).await.unwrap();
    let events = receive_all(opened.replies).await;
    assert!(
        matches!(&events[..], [ReplyEvent::Answer(Answer::Refused(Refusal::Rejected(_)))]),
        "{events:?}"
    );
    world.wait_until_empty().await;
    assert!(world.store.read(&opened.session).await.unwrap().is_none());
}

#[actix_rt::test]
async fn session_ids_end_with_the_nodes_tag() {
    let settings = Settings { node_tag: "n1".into(), ..Settings::default() };
    let world = World::with(settings, Script::default());
    let opened = world.initialize().await.unwrap();
    let id = opened.session.as_str();
    assert_eq!((id.len(), &id[36..]), (39, "-n1"));
    let settings = Settings { node_tag: "no tag".into(), ..Settings::default() };
    let opened = World::with(settings, Script::default()).initialize().await.unwrap();
    assert_eq!(opened.session.as_str().len(), 45);
}

#[actix_rt::test]
async fn a_deleted_session_is_unknown_and_its_link_is_closed() {
    let world = World::new();
    let caller = world.session().await;
    let events = receive_all(world.handle.delete(&caller)).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Ended)]), "{events:?}");
    world.wait_until_empty().await;
    assert_eq!(refusal(world.call(&caller, 1, "echo")).await, Refusal::UnknownSession);
    let record = world.store.read(&caller.session).await.unwrap().unwrap();
    assert_eq!(record.status, RecordStatus::Ended);
}

#[actix_rt::test]
async fn a_session_is_unknown_to_every_other_principal_and_tenant() {
    let world = World::new();
    let caller = world.session().await;
    let mut foreign = caller.clone();
    foreign.principal = Principal::named("mallory");
    assert_eq!(refusal(world.call(&foreign, 1, "echo")).await, Refusal::UnknownSession);
    assert_eq!(refusal(world.handle.listen(&foreign, None)).await, Refusal::UnknownSession);
    assert_eq!(refusal(world.handle.delete(&foreign)).await, Refusal::UnknownSession);
    let mut elsewhere = caller.clone();
    elsewhere.tenant = tenant("other", 10);
    assert_eq!(refusal(world.call(&elsewhere, 1, "echo")).await, Refusal::UnknownSession);
    let nobodys = world.caller(&SessionId::parse("nobody").unwrap());
    assert_eq!(refusal(world.call(&nobodys, 1, "echo")).await, Refusal::UnknownSession);
    world.check_call(&caller, 1).await;
}

#[actix_rt::test]
async fn a_tenant_at_its_bound_gets_no_further_session_and_others_do() {
    let mut world = World::new();
    world.tenant = tenant("acme", 2);
    let first = world.session().await;
    let _second = world.session().await;
    assert!(matches!(world.initialize().await, Err(Refusal::TooManySessions)));
    let other = tenant("other", 1);
    let connected = world.handle.connect(&other, &world.principal).await;
    assert!(connected.is_ok());
    receive_all(world.handle.delete(&first)).await;
    world.session().await;
}

#[actix_rt::test]
async fn a_node_at_its_bound_gets_no_further_session() {
    let settings = Settings { sessions_max: 1, ..Settings::default() };
    let world = World::with(settings, Script::default());
    let caller = world.session().await;
    assert!(matches!(world.initialize().await, Err(Refusal::TooManySessions)));
    assert!(matches!(
        world.handle.connect(&world.tenant, &world.principal).await,
        Err(Refusal::TooManySessions)
    ));
    world.check_call(&caller, 1).await;
}

#[actix_rt::test]
async fn at_the_bound_of_unfinished_handshakes_the_oldest_session_ends() {
    let settings = Settings { unconfirmed_max: 2, ..Settings::default() };
    let world = World::with(settings, Script::default());
    let live = world.session().await;
    let mut unconfirmed = Vec::new();
    for _ in 0..3 {
        let opened = world.initialize().await.unwrap();
        unconfirmed.push(world.caller(&opened.session));
        receive_all(opened.replies).await;
    }
    crate::support::wait_until(|| world.handle.sessions() == 3).await;
    assert_eq!(refusal(world.call(&unconfirmed[0], 1, "echo")).await, Refusal::UnknownSession);
    for caller in &unconfirmed[1..] {
        receive_all(world.handle.delete(caller)).await;
    }
    world.check_call(&live, 1).await;
}

#[actix_rt::test]
async fn a_flood_of_one_address_ends_unfinished_handshakes_of_that_address_only() {
    let settings = Settings { unconfirmed_max: 3, ..Settings::default() };
    let world = World::with(settings, Script::default());
    let opened_by = async |client: [u8; 4]| {
        let handle = world.handle.of_client(Some(client.into()));
        let opened = handle.connect(&world.tenant, &world.principal).await.unwrap();
        (world.caller(&opened.session), opened.replies)
    };
    let (slow, _replies) = opened_by([198, 51, 100, 1]).await;
    let mut flood = Vec::new();
    for _ in 0..10 {
        flood.push(opened_by([203, 0, 113, 9]).await);
    }
    crate::support::wait_until(|| world.handle.sessions() == 3).await;
    let gone = refusal(world.handle.delete(&flood[0].0)).await;
    assert_eq!(gone, Refusal::UnknownSession);
    let slow = receive_all(world.handle.delete(&slow)).await;
    assert!(matches!(slow[..], [ReplyEvent::Answer(Answer::Ended)]), "{slow:?}");
}

#[actix_rt::test]
async fn a_flood_of_one_tenant_leaves_another_its_part_of_the_sessions() {
    let settings = Settings { sessions_max: 8, ..Settings::default() };
    let mut world = World::of_tenants(settings, &["acme", "quiet"]);
    for _ in 0..6 {
        world.session().await;
    }
    assert!(matches!(world.initialize().await, Err(Refusal::TooManySessions)));
    world.tenant = tenant("quiet", 100);
    let first = world.handle.connect(&world.tenant, &world.principal).await;
    let second = world.handle.connect(&world.tenant, &world.principal).await;
    assert!(first.is_ok() && second.is_ok(), "a quarter of the sessions is reserved");
    let third = world.handle.connect(&world.tenant, &world.principal).await;
    assert!(matches!(third, Err(Refusal::TooManySessions)));
}

#[actix_rt::test]
async fn a_thousand_sessions_that_are_abandoned_leave_nothing() {
    let world = World::new();
    for round in 0..1_000 {
        let mut opened = world.initialize().await.unwrap();
        if round % 2 == 0 {
            assert!(next(&mut opened.replies).await.is_some());
            let caller = world.caller(&opened.session);
            drop(world.handle.delete(&caller));
        }
    }
    world.wait_until_empty().await;
}

#[actix_rt::test]
async fn a_session_that_panics_ends_no_other() {
    let script = Script { panics_from: Some(0), ..Script::default() };
    let fragile = World::with(Settings::default(), script);
    let opened = fragile.initialize().await.unwrap();
    let events = receive_all(opened.replies).await;
    assert!(
        matches!(&events[..], [ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable))]),
        "{events:?}"
    );
    fragile.wait_until_empty().await;

    let world = World::new();
    let caller = world.session().await;
    world.check_call(&caller, 1).await;
}

#[actix_rt::test]
async fn a_call_of_a_tenant_without_a_server_gets_an_error() {
    let mut world = World::new();
    world.tenant = tenant("other", 10);
    let opened = world.initialize().await.unwrap();
    let events = receive_all(opened.replies).await;
    let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
    assert!(crate::support::text(json).contains("no server"), "{events:?}");
    world.wait_until_empty().await;
}

#[actix_rt::test]
async fn an_idle_session_ends() {
    tokio::time::pause();
    let mut settings = Settings::default();
    settings.session.idle_secs = 60;
    let world = World::with(settings, Script::default());
    let caller = world.session().await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(refusal(world.call(&caller, 1, "echo")).await, Refusal::UnknownSession);
    world.wait_until_empty().await;
}

#[actix_rt::test]
async fn stopping_ends_every_session_and_refuses_new_ones() {
    tokio::time::pause();
    let world = World::new();
    let mut calls = Vec::new();
    for _ in 0..20 {
        let caller = world.session().await;
        calls.push(world.call(&caller, 1, "hang"));
    }
    let _still_shaking = world.initialize().await.unwrap();
    world.handle.stop(Duration::from_secs(5)).await;
    assert_eq!(world.handle.sessions(), 0);
    assert!(matches!(world.initialize().await, Err(Refusal::Stopping)));
    for replies in calls {
        let events = receive_all(replies).await;
        let last = crate::support::messages(&events).pop().unwrap().1;
        assert!(last.contains(r#""id":1,"error""#) && last.contains("stopping"), "{events:?}");
    }
    world.wait_until_empty().await;
}

#[actix_rt::test]
async fn a_call_in_flight_may_end_before_its_node_stops() {
    tokio::time::pause();
    let world = World::new();
    let (busy, quiet) = (world.session().await, world.session().await);
    let call = world.call(&busy, 1, "later");
    world.wait_for_requests(1).await;
    let stopping = world.handle.clone();
    let stopped = actix_rt::spawn(async move { stopping.stop(Duration::from_secs(5)).await });
    wait_until(|| world.handle.sessions() == 1).await;
    assert_eq!(refusal(world.call(&quiet, 1, "echo")).await, Refusal::UnknownSession);
    world.script.gate.notify_one();
    let events = receive_all(call).await;
    let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
    assert!(crate::support::text(json).contains("late"), "{events:?}");
    stopped.await.unwrap();
    assert_eq!(world.handle.sessions(), 0);
}

#[actix_rt::test]
async fn a_session_that_panics_later_is_unknown_from_then_on() {
    let script = Script { panics_from: Some(1), ..Script::default() };
    let world = World::with(Settings::default(), script);
    let (caller, other) = (world.session().await, world.initialize().await.unwrap());
    assert!(matches!(
        &receive_all(other.replies).await[..],
        [ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable))]
    ));
    world.check_call(&caller, 1).await;
    receive_all(world.call(&caller, 2, "die")).await;
    // The next call opens a new link, at which the script panics.
    let events = receive_all(world.call(&caller, 3, "echo")).await;
    let unknown = Refusal::UnknownSession;
    assert!(
        matches!(&events[..], [ReplyEvent::Answer(Answer::Refused(r))] if *r == unknown),
        "{events:?}"
    );
    world.wait_until_empty().await;
    let record = world.store.read(&caller.session).await.unwrap().unwrap();
    assert_eq!(record.status, RecordStatus::Ended);
}

#[actix_rt::test]
async fn a_session_serves_callers_on_every_thread() {
    const CALLERS: i64 = 4;
    const CALLS: i64 = 500;
    let world = Arc::new(World::new());
    let caller = world.session().await;
    let arbiters: Vec<_> = (0..CALLERS).map(|_| actix_rt::Arbiter::new()).collect();
    let done = Arc::new(AtomicUsize::new(0));
    for (thread, arbiter) in (0..).zip(&arbiters) {
        let (world, caller, done) = (Arc::clone(&world), caller.clone(), Arc::clone(&done));
        arbiter.spawn(async move {
            for call in 0..CALLS {
                world.check_call(&caller, thread * CALLS + call).await;
            }
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    wait_until(|| done.load(Ordering::SeqCst) == CALLERS as usize).await;
    assert_eq!(world.script.requests.load(Ordering::SeqCst), (CALLERS * CALLS) as usize);
    for arbiter in arbiters {
        arbiter.stop();
        arbiter.join().unwrap();
    }
}

#[actix_rt::test]
async fn a_duplex_session_ends_with_its_connection() {
    let world = World::new();
    let opened = world.handle.connect(&world.tenant, &world.principal).await.unwrap();
    let (caller, mut pipe) = (world.caller(&opened.session), opened.replies);
    let params = br#"{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
    let initialize = Request::new(0.into(), Method::Initialize, Some(params));
    let posted = world.handle.post(&caller, Body::One(initialize.into()), None);
    let events = receive_all(posted).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Accepted)]), "{events:?}");
    let events = next(&mut pipe).await.unwrap();
    assert!(crate::support::messages(&[events])[0].1.contains("2024-11-05"));
    assert!(world.store.read(&caller.session).await.unwrap().is_some());
    drop(pipe);
    world.wait_until_empty().await;
    assert_eq!(refusal(world.call(&caller, 1, "echo")).await, Refusal::UnknownSession);
}

#[actix_rt::test]
async fn a_server_that_accepts_no_messages_is_closed_and_replaced() {
    let world = World::new();
    let caller = world.session().await;
    let first = world.call(&caller, 1, "close_link");
    world.wait_for_requests(1).await;
    let second = world.call(&caller, 2, "echo");
    for replies in [first, second] {
        let events = receive_all(replies).await;
        let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
        assert!(crate::support::text(json).contains("the server is gone"), "{events:?}");
    }
    let events = receive_all(world.call(&caller, 3, "echo")).await;
    assert!(!events.is_empty());
    assert_eq!(world.script.opened.load(Ordering::SeqCst), 2);
}

#[actix_rt::test]
async fn events_of_a_link_after_it_was_closed_are_dropped() {
    tokio::time::pause();
    let mut settings = Settings::default();
    settings.session.start_secs = 5;
    let script = Script { silent_from: Some(1), ..Script::default() };
    let world = World::with(settings, script);
    let caller = world.session().await;
    // The server exits during the call; the next one opens a link that is never established.
    receive_all(world.call(&caller, 1, "die")).await;
    let waiting = world.call(&caller, 2, "echo");
    wait_until(|| world.script.opened.load(Ordering::SeqCst) == 2).await;
    let senders: Vec<_> = world.script.senders.lock().unwrap().clone();
    assert!(senders[0].is_closed());
    assert!(!senders[1].is_closed());
    let events = tokio::time::timeout(Duration::from_secs(60), async {
        let mut waiting = waiting;
        let mut events = Vec::new();
        while let Some(next) = waiting.next().await {
            events.push(next);
        }
        events
    });
    assert!(!events.await.unwrap().is_empty());
    wait_until(|| senders[1].is_closed()).await;
}
