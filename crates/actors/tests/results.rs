//! Results that are large, that come while the store refuses, or whose way to the client is
//! lost: each reaches its client, or an error that names the bound does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::forgetful::Forgetful;
use crate::support::nodes::Common;
use crate::support::{LARGE, Script, World, all, messages, text, until};
use actors::{Answer, Frame, ReplyEvent, ReplyStream, Settings};
use store::Store;
use tokio::time::{Instant, timeout};

/// Reads until something comes that is looked for.
async fn until_told(
    replies: &mut ReplyStream,
    is: impl Fn(&ReplyEvent) -> bool,
) -> Vec<ReplyEvent> {
    let mut told = Vec::new();
    let read = async {
        while let Some(next) = replies.next().await {
            let found = is(&next);
            told.push(next);
            if found {
                return;
            }
        }
        panic!("the stream ended: {told:?}");
    };
    timeout(Duration::from_secs(60), read).await.expect("in time");
    told
}

/// The connection's position, where its client resumes.
fn position(told: &[ReplyEvent]) -> Option<String> {
    let ids = told.iter().filter_map(|told| match told {
        ReplyEvent::Open { at, .. } => *at,
        ReplyEvent::Frame(Frame::Cursor { id, .. } | Frame::Message { id: Some(id), .. }) => {
            Some(*id)
        }
        _ => None,
    });
    ids.last().map(|id| id.to_string())
}

/// The last message of a call that was answered, as JSON or as a stream.
fn final_response(told: &[ReplyEvent]) -> String {
    match told.last() {
        Some(ReplyEvent::Answer(Answer::Json(json))) => text(json),
        _ => messages(told).last().expect("a final response").1.clone(),
    }
}

#[actix_rt::test]
async fn a_large_result_arrives_on_its_stream_and_again_where_that_broke() {
    tokio::time::pause();
    for revision in ["2025-06-18", "2025-11-25"] {
        let world = World::new();
        let caller = world.session_in(revision).await;
        let mut replies = world.call(&caller, 1, "large");
        let head = until_told(&mut replies, |told| matches!(told, ReplyEvent::Open { .. })).await;
        world.script.gate.notify_one();
        let told = all(replies).await;
        let sent = messages(&told);
        assert!(sent.len() == 1 && sent[0].1.len() > LARGE && sent[0].1.contains("result"));
        // The client was cut in the middle of it.
        let again = all(world.handle.listen(&caller, position(&head))).await;
        assert_eq!(messages(&again), sent, "in {revision}");
        assert_eq!(world.script.calls.load(Ordering::SeqCst), 1);
    }
}

#[actix_rt::test]
async fn a_result_above_the_bound_is_one_error_that_names_it() {
    let world = World::new();
    let caller = world.session().await;
    let told = all(world.call(&caller, 1, "huge")).await;
    let error = final_response(&told);
    assert!(error.contains("sessions.message_bytes_max"), "{error}");
    assert_eq!(world.script.calls.load(Ordering::SeqCst), 1);
}

fn on_a_store() -> (World, Arc<Forgetful>) {
    let store = Arc::new(Forgetful::default());
    let shared: Arc<dyn Store> = Arc::clone(&store) as _;
    (World::on(Settings::default(), Script::default(), shared), store)
}

#[actix_rt::test]
async fn a_store_that_is_full_delays_a_head_by_seconds_and_a_result_by_no_more_than_any_hold() {
    tokio::time::pause();
    let (world, store) = on_a_store();
    let caller = world.session().await;
    store.is_full.store(true, Ordering::SeqCst);
    let began = Instant::now();
    let mut replies = world.call(&caller, 1, "later");
    let mut listening = world.handle.listen(&caller, None);
    for replies in [&mut replies, &mut listening] {
        let head = until_told(replies, |told| matches!(told, ReplyEvent::Open { .. })).await;
        assert_eq!(position(&head), None, "the log holds nothing");
        assert!(began.elapsed() <= Duration::from_secs(5), "{:?}", began.elapsed());
    }
    tokio::time::sleep(Duration::from_secs(100)).await;
    world.script.gate.notify_one();
    let known = Instant::now();
    let is_message = |told: &ReplyEvent| matches!(told, ReplyEvent::Frame(Frame::Message { .. }));
    let told = until_told(&mut replies, is_message).await;
    assert!(known.elapsed() <= Duration::from_secs(26), "{:?}", known.elapsed());
    let sent = messages(&told);
    assert!(sent[0].0.is_none() && sent[0].1.contains("late"), "{sent:?}");
    assert_eq!(position(&told), None);
    assert!(all(replies).await.is_empty(), "it ends, and says nothing twice");

    // Where there is room again all is as before.
    store.is_full.store(false, Ordering::SeqCst);
    let is_cursor = |told: &ReplyEvent| matches!(told, ReplyEvent::Frame(Frame::Cursor { .. }));
    until_told(&mut listening, is_cursor).await;
    let told = all(world.call(&caller, 2, "flood")).await;
    assert!(messages(&told).iter().all(|(id, _)| id.is_some()));
}

/// Blocks a node for longer than its peers wait for a sign of life, and far less than its
/// lease; its server answers meanwhile.
#[actix_rt::test]
async fn an_owner_that_stalls_gives_what_was_answered_meanwhile_to_who_asks_again() {
    // An answer that stays JSON, since a stream's is in the log.
    let session = conversation::Limits { sse_after_ms: 60_000, ..Settings::default().session };
    let settings = Settings { session, ..Settings::default() };
    let [owner, ingress] = Common { settings, ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    for (id, calls) in [(1, 1), (2, 2)] {
        let calling = {
            let caller = caller.clone();
            ingress.inside(move |world| async move { all(world.call(&caller, id, "later")).await })
        };
        let stalling = async {
            until(|| owner.script.calls.load(Ordering::SeqCst) == calls).await;
            let stall = |world: World| async move {
                std::thread::sleep(Duration::from_millis(1_200));
                world.script.gate.notify_one();
            };
            owner.inside(stall).await;
        };
        let (told, ()) = tokio::join!(calling, stalling);
        let last = final_response(&told);
        assert!(last.contains("\"late\":true"), "{last}");
        assert_eq!(owner.script.calls.load(Ordering::SeqCst), calls, "it ran once");
    }
}
