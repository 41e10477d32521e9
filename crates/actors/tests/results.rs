//! Results that are large, that arrive while the store refuses writes, or whose connection is lost:
//! each reaches its client, or an error that names the bound does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::lossy_store::LossyStore;
use crate::support::nodes::Common;
use crate::support::{
    LARGE, MEDIUM_BYTES, Script, World, final_response, messages, occupy_threads_of_long_messages,
    receive_all, wait_until,
};
use actors::{Frame, ReplyEvent, ReplyStream, Settings};
use store::Store;
use tokio::time::{Instant, timeout};

/// Reads until an event matches.
async fn receive_until(
    replies: &mut ReplyStream,
    is: impl Fn(&ReplyEvent) -> bool,
) -> Vec<ReplyEvent> {
    let mut events = Vec::new();
    let read = async {
        while let Some(next) = replies.next().await {
            let found = is(&next);
            events.push(next);
            if found {
                return;
            }
        }
        panic!("the stream ended: {events:?}");
    };
    timeout(Duration::from_secs(60), read).await.expect("in time");
    events
}

/// The connection's position, where its client resumes.
fn position(events: &[ReplyEvent]) -> Option<String> {
    let ids = events.iter().filter_map(|events| match events {
        ReplyEvent::Open { at, .. } => *at,
        ReplyEvent::Frame(Frame::Cursor { id, .. } | Frame::Message { id: Some(id), .. }) => {
            Some(*id)
        }
        _ => None,
    });
    ids.last().map(|id| id.to_string())
}

#[actix_rt::test]
async fn a_large_result_arrives_on_its_stream_and_again_after_a_break() {
    for revision in ["2025-06-18", "2025-11-25"] {
        tokio::time::pause();
        let world = World::new();
        let caller = world.session_in(revision).await;
        let mut replies = world.call(&caller, 1, "large");
        let head =
            receive_until(&mut replies, |events| matches!(events, ReplyEvent::Open { .. })).await;
        // Another thread handles the result, for which a paused clock does not wait.
        tokio::time::resume();
        world.script.gate.notify_one();
        let events = receive_all(replies).await;
        let sent = messages(&events);
        assert!(sent.len() == 1 && sent[0].1.len() > LARGE && sent[0].1.contains("result"));
        // The client was cut during the message.
        let again = receive_all(world.handle.listen(&caller, position(&head))).await;
        assert_eq!(messages(&again), sent, "in {revision}");
        assert_eq!(world.script.calls.load(Ordering::SeqCst), 1);
    }
}

#[actix_rt::test]
async fn a_result_above_the_bound_is_one_error_that_names_it() {
    let world = World::new();
    let caller = world.session().await;
    let events = receive_all(world.call(&caller, 1, "huge")).await;
    let error = final_response(&events);
    assert!(error.contains("sessions.message_bytes_max"), "{error}");
    assert_eq!(world.script.calls.load(Ordering::SeqCst), 1);
}

fn on_a_store() -> (World, Arc<LossyStore>) {
    let store = Arc::new(LossyStore::default());
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
        let head = receive_until(replies, |events| matches!(events, ReplyEvent::Open { .. })).await;
        assert_eq!(position(&head), None, "the log is empty");
        assert!(began.elapsed() <= Duration::from_secs(5), "{:?}", began.elapsed());
    }
    tokio::time::sleep(Duration::from_secs(100)).await;
    world.script.gate.notify_one();
    let known = Instant::now();
    let is_message =
        |events: &ReplyEvent| matches!(events, ReplyEvent::Frame(Frame::Message { .. }));
    let events = receive_until(&mut replies, is_message).await;
    assert!(known.elapsed() <= Duration::from_secs(26), "{:?}", known.elapsed());
    let sent = messages(&events);
    assert!(sent[0].0.is_none() && sent[0].1.contains("late"), "{sent:?}");
    assert_eq!(position(&events), None);
    assert!(receive_all(replies).await.is_empty(), "the stream ends without a second result");

    // Once the store has room again, calls work as before.
    store.is_full.store(false, Ordering::SeqCst);
    let is_cursor = |events: &ReplyEvent| matches!(events, ReplyEvent::Frame(Frame::Cursor { .. }));
    receive_until(&mut listening, is_cursor).await;
    let events = receive_all(world.call(&caller, 2, "flood")).await;
    assert!(messages(&events).iter().all(|(id, _)| id.is_some()));
}

/// Blocks a node for longer than its peers wait for a pong, and far shorter than its lease; its
/// server answers meanwhile.
#[actix_rt::test]
async fn an_owner_that_stalls_replies_with_the_stored_answer_to_a_repeated_request() {
    // An answer that stays JSON, since the events of a stream are in the log.
    let session = conversation::Limits { sse_after_ms: 60_000, ..Settings::default().session };
    let settings = Settings { session, ..Settings::default() };
    let [owner, ingress] = Common { settings, ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    for (id, calls) in [(1, 1), (2, 2)] {
        let calling = {
            let caller = caller.clone();
            ingress.inside(move |world| async move {
                receive_all(world.call(&caller, id, "later")).await
            })
        };
        let stalling = async {
            wait_until(|| owner.script.calls.load(Ordering::SeqCst) == calls).await;
            let stall = |world: World| async move {
                std::thread::sleep(Duration::from_millis(1_200));
                world.script.gate.notify_one();
            };
            owner.inside(stall).await;
        };
        let (events, ()) = tokio::join!(calling, stalling);
        let last = final_response(&events);
        assert!(last.contains("\"late\":true"), "{last}");
        assert_eq!(owner.script.calls.load(Ordering::SeqCst), calls, "it ran once");
    }
}

#[actix_rt::test]
async fn a_long_message_is_handled_beside_the_calls_of_other_sessions() {
    let world = World::new();
    let (long, short) = (world.session().await, world.session().await);
    let busy = occupy_threads_of_long_messages();
    let mut replies = world.call(&long, 1, "medium");
    let answered = receive_all(world.call(&short, 2, "any")).await;
    assert!(final_response(&answered).contains("ok"));
    let early = timeout(Duration::from_millis(100), replies.next()).await;
    assert!(early.is_err(), "it was handled on the worker: {early:?}");
    drop(busy);
    assert!(final_response(&receive_all(replies).await).len() > MEDIUM_BYTES);
}
