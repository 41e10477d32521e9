//! Clients that leave, are slow, or reconnect.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{FLOOD, Script, World, messages, next, receive_all, text};
use actors::{Answer, Frame, ReplyEvent, Settings};
use protocol::{Body, Method, Notification};

#[actix_rt::test]
async fn a_call_runs_although_its_caller_leaves_at_once() {
    let world = World::new();
    let caller = world.session().await;
    drop(world.call(&caller, 1, "later"));
    world.wait_for_requests(1).await;
    world.script.gate.notify_one();
    world.check_call(&caller, 2).await;
    assert_eq!(world.script.requests.load(Ordering::SeqCst), 2);
}

#[actix_rt::test]
async fn a_cancelled_wait_loses_no_event() {
    let world = World::new();
    let caller = world.session().await;
    let mut replies = world.call(&caller, 1, "later");
    for _ in 0..3 {
        let waited = tokio::time::timeout(Duration::from_millis(1), replies.next());
        assert!(waited.await.is_err());
    }
    world.script.gate.notify_one();
    let events = receive_all(replies).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Json(_))]), "{events:?}");
}

#[actix_rt::test]
async fn a_client_that_leaves_before_the_handshake_is_done_leaves_no_session() {
    let world = World::new();
    let opened = world.initialize().await.unwrap();
    let session = opened.session.clone();
    drop(opened);
    world.wait_until_empty().await;
    assert!(world.store.read(&session).await.unwrap().is_none());
}

#[actix_rt::test]
async fn a_client_that_leaves_a_stream_gets_all_events_when_it_resumes() {
    let world = World::new();
    let caller = world.session().await;
    let mut replies = world.call(&caller, 1, "flood");
    let mut events = Vec::new();
    while messages(&events).len() < 10 {
        events.push(next(&mut replies).await.unwrap());
    }
    drop(replies);
    let mut seen = messages(&events);
    let after = seen.last().unwrap().0.clone();
    let rest = receive_all(world.handle.listen(&caller, after)).await;
    seen.extend(messages(&rest));
    is_the_whole_flood(&seen);
}

// holds: SSE-13
#[actix_rt::test]
async fn an_idle_stream_gets_keep_alives_and_a_wait_for_json_gets_none() {
    let mut settings = Settings::default();
    (settings.session.keepalive_secs, settings.session.sse_after_ms) = (1, 60_000);
    let world = World::with(settings, Script::default());
    let caller = world.session().await;
    let mut call = world.call(&caller, 1, "later");
    let mut stream = world.handle.listen(&caller, None);
    let mut duplex = world.handle.connect(&world.tenant, &world.principal).await.unwrap().replies;
    for listening in [&mut stream, &mut duplex] {
        let mut signs = 0;
        while signs < 2 {
            signs += match next(listening).await {
                Some(ReplyEvent::Frame(Frame::KeepAlive)) => 1,
                Some(ReplyEvent::Open { .. } | ReplyEvent::Frame(Frame::Cursor { .. })) => 0,
                events => panic!("{events:?}"),
            };
        }
    }
    world.script.gate.notify_one();
    assert!(matches!(next(&mut call).await, Some(ReplyEvent::Answer(Answer::Json(_)))));
}

#[actix_rt::test]
async fn a_slow_reader_is_cut_and_gets_the_missed_events_when_it_resumes() {
    let mut settings = Settings { sink_frames_max: 8, ..Settings::default() };
    settings.session.log_events_max = FLOOD / 2;
    let world = World::with(settings, Script::default());
    let caller = world.session().await;
    let slow = world.call(&caller, 1, "flood");
    world.wait_for_requests(1).await;
    // The server has sent all messages once it answers again.
    world.check_call(&caller, 2).await;
    let events = receive_all(slow).await;
    assert!(matches!(events.last(), Some(ReplyEvent::Abort)), "{:?}", events.last());
    let mut seen = messages(&events);
    assert!(seen.len() < FLOOD);
    let after = seen.last().unwrap().0.clone();
    let rest = receive_all(world.handle.listen(&caller, after)).await;
    seen.extend(messages(&rest));
    is_the_whole_flood(&seen);
}

#[actix_rt::test]
async fn a_whole_log_is_replayed_to_one_connection_at_once() {
    let settings = Settings { sink_frames_max: 1, sink_bytes_max: 1, ..Settings::default() };
    let world = World::with(settings, Script::default());
    let caller = world.session().await;
    let mut replies = world.call(&caller, 1, "flood");
    let cursor = loop {
        match next(&mut replies).await.unwrap() {
            ReplyEvent::Frame(Frame::Cursor { id, .. }) => break id.to_string(),
            ReplyEvent::Open { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    drop(replies);
    world.check_call(&caller, 2).await;
    let events = receive_all(world.handle.listen(&caller, Some(cursor))).await;
    is_the_whole_flood(&messages(&events));
}

#[actix_rt::test]
async fn a_busy_session_refuses_calls_and_loses_none_that_it_accepted() {
    let settings = Settings { mailbox_max: 4, ..Settings::default() };
    let world = World::with(settings, Script::default());
    let caller = world.session().await;
    let calls: Vec<_> = (0..20).map(|id| world.call(&caller, id, "echo")).collect();
    let (mut taken, mut busy) = (0, 0);
    for replies in calls {
        let events = receive_all(replies).await;
        let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
        match text(json) {
            json if json.contains(r#""ok":true"#) => taken += 1,
            json if json.contains("too much work waiting") => busy += 1,
            json => panic!("{json}"),
        }
    }
    assert!(busy > 0 && taken >= 4, "{busy} busy, {taken} taken");
    world.check_call(&caller, 100).await;
}

#[actix_rt::test]
async fn a_session_with_a_full_mailbox_detects_readers_that_left() {
    tokio::time::pause();
    let mut settings = Settings { mailbox_max: 2, ..Settings::default() };
    settings.session.idle_secs = 10;
    let world = World::with(settings, Script::default());
    let caller = world.session().await;
    for _ in 0..50 {
        // The mailbox is full when the readers disconnect.
        let mut readers = Vec::new();
        for _ in 0..8 {
            readers.push(world.handle.listen(&caller, None));
        }
        drop(readers);
        tokio::task::yield_now().await;
    }
    // A session with a reader is not idle. It would never end if it missed a disconnect.
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(world.handle.sessions(), 0);
}

#[actix_rt::test]
async fn a_message_without_a_reply_waits_for_room_instead_of_being_refused() {
    let world = World::with(Settings { mailbox_max: 2, ..Settings::default() }, Script::default());
    let caller = world.session().await;
    let mut waiting = Vec::new();
    for _ in 0..50 {
        let notification = Notification::new(Method::RootsListChanged, None).into();
        waiting.push(world.handle.post(&caller, Body::One(notification), None));
    }
    for replies in waiting {
        let events = receive_all(replies).await;
        assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Accepted)]), "{events:?}");
    }
}

fn is_the_whole_flood(seen: &[(Option<String>, String)]) {
    let expected = (0..FLOOD).map(|number| format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":{number}}}}}"#));
    let expected: Vec<_> =
        expected.chain([r#"{"jsonrpc":"2.0","id":1,"result":{"done":true}}"#.to_owned()]).collect();
    let seen: Vec<_> = seen.iter().map(|(_, message)| message.clone()).collect();
    assert_eq!(seen, expected);
}
