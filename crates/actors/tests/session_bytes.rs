//! The budget of the bytes that sessions keep.

use std::sync::Arc;

use actors::{Answer, Refusal, ReplyEvent, SessionBytes, Settings};
use budget::ShareLimits;

use crate::support::{MEDIUM_BYTES, Script, World, next, receive_all, text, wait_until};

/// A node whose tenant may keep this number of bytes.
fn bounded(settings: Settings, max: usize) -> World {
    let limits = ShareLimits { min: 0, max };
    World::bounded(settings, Script::default(), SessionBytes::new(max, [("acme".into(), limits)]))
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
    let mut world = World::bounded(Settings::default(), Script::default(), bytes);
    let caller = world.session().await;
    receive_all(world.call(&caller, 1, "streamed")).await;
    receive_all(world.call(&caller, 2, "streamed")).await;
    assert!(matches!(world.initialize().await, Err(Refusal::TooManySessions)));
    world.tenant = crate::support::tenant("quiet", 10);
    let opened = world.initialize().await.expect("the other tenant opens sessions");
    receive_all(opened.replies).await;
}
