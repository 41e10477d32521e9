//! The budget of the bytes that sessions keep.

use std::sync::Arc;

use actors::{Answer, Care, Refusal, ReplyEvent, SessionBytes, Settings};
use budget::ShareLimits;

use crate::support::{MEDIUM_BYTES, World, messages, next, receive_all, text, wait_until};

/// A node whose tenant may keep this number of bytes.
fn bounded(settings: Settings, max: usize) -> World {
    caring(settings, Care::default(), max)
}

/// As `bounded`, with these settings for the tenant's server.
fn caring(settings: Settings, care: Care, max: usize) -> World {
    let limits = ShareLimits { min: 0, max };
    World::bounded(settings, care, SessionBytes::new(max, [("acme".into(), limits)]))
}

/// The share of the tenant that is used.
fn used(world: &World) -> usize {
    world.session_bytes.used("acme")
}

#[actix_rt::test]
async fn an_idle_session_is_charged_for_nothing_and_its_log_until_it_expires() {
    let mut settings = Settings::default();
    settings.session.replay_secs = 1;
    let world = bounded(settings, 1 << 30);
    let caller = world.session().await;
    assert_eq!(used(&world), 0);
    let events = receive_all(world.call(&caller, 1, "streamed")).await;
    assert!(events.len() > 1, "a stream");
    assert!(used(&world) >= MEDIUM_BYTES / 4_096 * 4_096);
    wait_until(|| used(&world) == 0).await;
    receive_all(world.handle.delete(&caller)).await;
    world.wait_until_empty().await;
    assert_eq!(used(&world), 0);
}

#[actix_rt::test]
async fn unread_streams_are_cut_at_the_bound_and_their_clients_can_resume() {
    let world = bounded(Settings::default(), 4 * MEDIUM_BYTES);
    let caller = world.session().await;
    let mut unread = Vec::new();
    for id in 1..=3 {
        let mut replies = world.call(&caller, id, "streamed");
        // The client reads the head of the stream, and no event.
        assert!(matches!(next(&mut replies).await, Some(ReplyEvent::Open { .. })));
        unread.push(replies);
    }
    // Log and queues hold six results; the bound permits four.
    wait_until(|| used(&world) <= 4 * MEDIUM_BYTES).await;
    let mut cut = 0;
    for replies in unread {
        let events = receive_all(replies).await;
        cut += usize::from(matches!(events.last(), Some(ReplyEvent::Abort)));
    }
    assert!(cut > 0, "no stream was cut");
    wait_until(|| used(&world) <= 4 * MEDIUM_BYTES).await;
    world.check_call(&caller, 9).await;
}

#[actix_rt::test]
async fn at_the_bound_new_work_is_refused_until_bytes_are_released() {
    let settings = Settings { hold_ms: 1_500, ..Settings::default() };
    let world = bounded(settings, MEDIUM_BYTES);
    let caller = world.session().await;
    // The result stays in the log for `hold_ms`: its client may have to request it again.
    receive_all(world.call(&caller, 1, "streamed")).await;
    receive_all(world.call(&caller, 2, "streamed")).await;
    assert!(used(&world) > MEDIUM_BYTES, "no result is dropped");
    let refused = receive_all(world.call(&caller, 3, "echo")).await;
    let [ReplyEvent::Answer(Answer::Json(json))] = &refused[..] else { panic!("{refused:?}") };
    assert!(text(json).contains("tenants.*.limits.session_bytes_max"), "{}", text(json));
    assert!(matches!(world.initialize().await, Err(Refusal::TooManySessions)));
    // The delivered events are dropped once they are old enough.
    wait_until(|| used(&world) < MEDIUM_BYTES).await;
    world.check_call(&caller, 4).await;
    world.session().await;
}

#[actix_rt::test]
async fn a_tenant_at_its_bound_does_not_affect_another() {
    let limits = ShareLimits { min: 0, max: MEDIUM_BYTES };
    let tenants = ["acme", "quiet"].map(|name| (Arc::from(name), limits));
    let bytes = SessionBytes::new(2 * MEDIUM_BYTES, tenants);
    let mut world = World::bounded(Settings::default(), Care::default(), bytes);
    let caller = world.session().await;
    receive_all(world.call(&caller, 1, "streamed")).await;
    receive_all(world.call(&caller, 2, "streamed")).await;
    assert!(matches!(world.initialize().await, Err(Refusal::TooManySessions)));
    world.tenant = crate::support::tenant("quiet", 10);
    let opened = world.initialize().await.expect("the other tenant opens sessions");
    receive_all(opened.replies).await;
}

#[actix_rt::test]
async fn above_the_bound_sessions_keep_no_delivered_events_in_the_store_while_they_sleep() {
    let mut settings = Settings { hold_ms: 500, ..Settings::default() };
    settings.session.sleep_after_secs = 1;
    let stops_at_once = Care { idle_stop_secs: Some(0), ..Care::default() };
    // Two results fit, a third one does not.
    let world = caring(settings, stops_at_once, 5 * MEDIUM_BYTES / 2);
    let in_store = || world.session_bytes.used_in_store("acme");
    let mut callers = Vec::new();
    for _ in 0..4 {
        let caller = world.session().await;
        let events = messages(&receive_all(world.call(&caller, 1, "streamed")).await);
        callers.push((caller, events[0].0.clone()));
        world.wait_until_empty().await;
        assert!(in_store() <= 5 * MEDIUM_BYTES / 2, "{} bytes", in_store());
    }
    assert!(in_store() >= 2 * (MEDIUM_BYTES - 4_096), "{} bytes", in_store());
    assert_eq!(used(&world), 0, "no session is in memory");
    let mut replayed = Vec::new();
    for (caller, after) in &callers {
        let events = receive_all(world.handle.listen(caller, after.clone())).await;
        replayed.push(messages(&events).iter().any(|(_, data)| data.len() > MEDIUM_BYTES));
        receive_all(world.handle.delete(caller)).await;
        world.wait_until_empty().await;
    }
    assert_eq!(replayed, [true, true, false, false]);
    assert_eq!(in_store(), 0, "a session that was restored is not charged twice");
}
