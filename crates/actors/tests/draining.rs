//! A node drains: its sessions move to other nodes, and its clients reconnect there.

use std::time::Duration;

use crate::support::nodes::{Common, MOMENT, Node};
use crate::support::{PATIENCE, STEPS, World, messages, next, receive_all, text, wait_until};
use actors::{Answer, Caller, Frame, Refusal, ReplyEvent, ReplyStream};
use backends::LinkEvent;
use protocol::{Body, Method, Notification, Request};

/// Streams of the first revision begin with a cursor, those of the others do not.
const REVISIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

/// Starts to drain without waiting for the end.
fn drain(node: &Node, grace: Duration) -> tokio::task::JoinHandle<()> {
    let handle = node.handle.clone();
    tokio::spawn(async move { handle.drain(grace).await })
}

async fn drained(draining: tokio::task::JoinHandle<()>) {
    tokio::time::timeout(PATIENCE, draining).await.expect("drained in time").unwrap();
}

async fn listening(node: &World, caller: &Caller, after: Option<String>) -> ReplyStream {
    let mut replies = node.handle.listen(caller, after);
    let events = next(&mut replies).await;
    assert!(matches!(events, Some(ReplyEvent::Open { welcome: false, .. })), "{events:?}");
    replies
}

/// Starts a call and reads its first messages.
async fn stepping(node: &World, caller: &Caller) -> (ReplyStream, Vec<(Option<String>, String)>) {
    let mut replies = node.call(caller, 1, "steps");
    let mut events = Vec::new();
    while messages(&events).len() < STEPS {
        events.push(next(&mut replies).await.expect("the stream ended"));
    }
    (replies, messages(&events))
}

/// The remaining events of a stream, without cursors and keep-alives.
async fn rest(replies: ReplyStream) -> Vec<ReplyEvent> {
    let mut events = receive_all(replies).await;
    events.retain(|events| {
        !matches!(events, ReplyEvent::Frame(Frame::Cursor { .. } | Frame::KeepAlive))
    });
    events
}

#[track_caller]
fn sends_away(events: &[ReplyEvent]) {
    assert!(matches!(events, [ReplyEvent::Frame(Frame::Retry(500..=1_500))]), "{events:?}");
}

#[actix_rt::test]
async fn resumable_streams_end_and_continue_at_another_node() {
    let [leaving, other] = Common::default().nodes().await;
    let caller = leaving.session_of(REVISIONS[0]).await;
    let listens = listening(&leaving, &caller, None).await;
    let (call, seen) = stepping(&leaving, &caller).await;
    let draining = drain(&leaving, Duration::from_secs(30));
    sends_away(&rest(listens).await);
    sends_away(&rest(call).await);

    let after = seen.last().unwrap().0.clone();
    let resumed = listening(&other, &caller, after).await;
    tokio::time::sleep(MOMENT).await;
    assert!(!draining.is_finished(), "the call may finish");
    other.script.gate.notify_one();
    let last = messages(&rest(resumed).await);
    assert!(matches!(&last[..], [(Some(_), last)] if last.contains("done")), "{last:?}");
    drained(draining).await;
    other.check_call(&caller, 2).await;
    assert_eq!((leaving.handle.sessions(), other.handle.sessions()), (0, 1));
}

#[actix_rt::test]
async fn streams_that_clients_resume_only_after_a_break_are_broken_or_continue() {
    for revision in &REVISIONS[1..] {
        let [leaving, other] = Common::default().nodes().await;
        let caller = leaving.session_of(revision).await;
        let listens = listening(&leaving, &caller, None).await;
        let (mut call, _) = stepping(&leaving, &caller).await;
        let draining = drain(&leaving, Duration::from_secs(30));
        let events = rest(listens).await;
        assert!(matches!(&events[..], [ReplyEvent::Abort]), "{revision}: {events:?}");
        let more = tokio::time::timeout(MOMENT, call.next()).await;
        assert!(more.is_err(), "{revision}: the call should continue: {more:?}");
        other.script.gate.notify_one();
        let last = messages(&rest(call).await);
        assert!(matches!(&last[..], [(Some(_), last)] if last.contains("done")), "{last:?}");
        drained(draining).await;
    }
}

#[actix_rt::test]
async fn streams_at_other_nodes_continue_on_their_connections() {
    let [leaving, one, other] = Common::default().nodes().await;
    let caller = leaving.session_of(REVISIONS[0]).await;
    let mut streams = [
        listening(&one, &caller, None).await,
        listening(&other, &caller, None).await,
        listening(&other, &caller, None).await,
    ];
    drained(drain(&leaving, Duration::from_secs(30))).await;
    // One link for each take-over of the session.
    let links = || leaving.script.senders.lock().unwrap().len();
    let mut events = Vec::new();
    // Each stream that is read causes a take-over.
    loop {
        tokio::select! {
            one = any(&mut streams) => events.push(one),
            () = wait_until(|| links() == 2) => break,
        }
    }
    let message = Notification::new(Method::ToolsListChanged, None).into();
    let sender = leaving.script.senders.lock().unwrap().last().cloned().unwrap();
    sender.send(LinkEvent::Message { message, about: None }).await.unwrap();
    while messages(&events).is_empty() {
        events.push(any(&mut streams).await);
    }
    assert!(messages(&events)[0].1.contains("list_changed"), "{events:?}");
    assert_eq!(one.handle.sessions() + other.handle.sessions(), 1);
}

/// The next event of any of these streams. Fails if one ends.
async fn any(streams: &mut [ReplyStream]) -> ReplyEvent {
    let nexts = streams.iter_mut().map(|stream| Box::pin(next(stream)));
    let (events, _, _) = futures_util::future::select_all(nexts).await;
    let events = events.expect("no stream ends");
    assert!(matches!(events, ReplyEvent::Frame(_)), "{events:?}");
    events
}

#[actix_rt::test]
async fn a_draining_node_serves_requests_through_nodes_that_took_its_sessions_over() {
    let [leaving, other] = Common::default().nodes().await;
    let caller = leaving.session_of(REVISIONS[0]).await;
    let foreign = other.session_of(REVISIONS[0]).await;
    leaving.check_call(&caller, 1).await;
    drained(drain(&leaving, Duration::from_secs(30))).await;
    assert!(leaving.handle.is_draining());
    // No client has connected to another node yet.
    leaving.check_call(&caller, 2).await;
    leaving.check_call(&foreign, 3).await;
    assert_eq!((leaving.handle.sessions(), other.handle.sessions()), (0, 2));
    let ended = receive_all(leaving.handle.delete(&caller)).await;
    assert!(matches!(&ended[..], [ReplyEvent::Answer(Answer::Ended)]), "{ended:?}");
}

#[actix_rt::test]
async fn sessions_opened_at_a_draining_node_are_created_by_another() {
    let [leaving, mut other] = Common::default().nodes().await;
    drained(drain(&leaving, Duration::from_secs(30))).await;
    for revision in REVISIONS {
        let caller = leaving.session_of(revision).await;
        leaving.check_call(&caller, 1).await;
        other.check_call(&caller, 2).await;
    }
    assert_eq!((leaving.handle.sessions(), other.handle.sessions()), (0, 3));
    let full = Caller {
        tenant: crate::support::tenant("acme", 3),
        ..leaving.session_of(REVISIONS[0]).await
    };
    let request = || Request::new(0.into(), Method::Initialize, None);
    let (tenant, principal) = (&full.tenant, &full.principal);
    let refused = leaving.handle.initialize(tenant, principal, request(), None).await.err();
    assert_eq!(refused, Some(Refusal::TooManySessions), "the refusal of the other node");
    // No other node accepts sessions.
    drained(drain(&other, Duration::from_secs(30))).await;
    wait_until(|| other.cluster.nodes().iter().all(|lease| lease.draining)).await;
    wait_until(|| leaving.cluster.nodes().iter().all(|lease| lease.draining)).await;
    leaving.handle.close();
    let refused = leaving.handle.initialize(tenant, principal, request(), None).await.err();
    assert_eq!(refused, Some(Refusal::Stopping));
    other.kill();
}

#[actix_rt::test]
async fn a_draining_node_has_sessions_created_at_the_node_with_the_fewest() {
    let [leaving, one, other] = Common::default().nodes().await;
    for (busy, idle) in [(&one, &other), (&other, &one)] {
        while busy.handle.sessions() < idle.handle.sessions() + 2 {
            busy.session_of(REVISIONS[0]).await;
        }
        let announced = || {
            let leases = leaving.cluster.nodes();
            let load = |node: &Node| {
                let lease = |lease: &&store::Lease| lease.incarnation == node.cluster.incarnation();
                leases.iter().find(lease).map_or(0, |lease| lease.load)
            };
            load(busy) == busy.handle.sessions() as u64 && load(busy) == load(idle) + 2
        };
        wait_until(announced).await;
        if !leaving.handle.is_draining() {
            drained(drain(&leaving, Duration::from_secs(30))).await;
        }
        let before = idle.handle.sessions();
        leaving.session_of(REVISIONS[0]).await;
        assert_eq!(idle.handle.sessions(), before + 1);
    }
}

#[actix_rt::test]
async fn calls_that_arrive_while_a_session_leaves_run_at_its_next_owner() {
    let [leaving, other] = Common::default().nodes().await;
    let caller = leaving.session_of(REVISIONS[0]).await;
    let mut draining = None;
    for id in 0..200 {
        if id == 50 {
            draining = Some(drain(&leaving, Duration::from_secs(30)));
        }
        if id % 2 == 0 { &leaving } else { &other }.check_call(&caller, id).await;
    }
    drained(draining.unwrap()).await;
    let calls = leaving.script.calls.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(calls, 200, "each was made once");
    assert_eq!((leaving.handle.sessions(), other.handle.sessions()), (0, 1));
}

#[actix_rt::test]
async fn a_call_that_outlasts_the_drain_ends_with_one_error() {
    for revision in REVISIONS {
        let [leaving, other] = Common::default().nodes().await;
        let caller = leaving.session_of(revision).await;
        let (stream, _) = stepping(&other, &caller).await;
        let silent = leaving.session_of(revision).await;
        let mut held = other.call(&silent, 2, "hang");
        let received = || leaving.script.calls.load(std::sync::atomic::Ordering::SeqCst) == 2;
        tokio::select! {
            events = held.next() => panic!("{events:?}"),
            () = wait_until(received) => {}
        }
        drained(drain(&leaving, Duration::from_millis(100))).await;
        let last = messages(&rest(stream).await);
        assert!(matches!(&last[..], [(Some(_), e)] if e.contains(r#""id":1,"error""#)), "{last:?}");
        let events = receive_all(held).await;
        let [ReplyEvent::Answer(Answer::Json(error))] = &events[..] else { panic!("{events:?}") };
        assert!(text(error).contains(r#""id":2,"error""#), "{events:?}");
        other.check_call(&caller, 3).await;
        other.check_call(&silent, 3).await;
    }
}

/// Posts a message that is accepted, and whose reply arrives on the connection of its session.
async fn posts(node: &World, caller: &Caller, message: protocol::Message) {
    let events = receive_all(node.handle.post(caller, Body::One(message), None)).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Accepted)]), "{events:?}");
}

#[actix_rt::test]
async fn a_drain_that_is_taken_back_leaves_busy_sessions_here_and_creates_new_ones_here() {
    let [node, other] = Common::default().nodes().await;
    let busy = node.session_of(REVISIONS[0]).await;
    let idle = node.session_of(REVISIONS[0]).await;
    node.check_call(&idle, 1).await;
    let (_call, _) = stepping(&node, &busy).await;
    let links = || node.script.senders.lock().unwrap().len();
    let before = links();
    let draining = drain(&node, Duration::from_secs(30));
    wait_until(|| node.handle.sessions() == 1).await;
    draining.abort();
    for _ in 0..2 {
        node.handle.cancel_drain();
        assert!(!node.handle.is_draining());
    }
    wait_until(|| other.cluster.nodes().iter().all(|lease| !lease.draining)).await;
    node.script.gate.notify_one();
    node.check_call(&busy, 2).await;
    assert_eq!((node.handle.sessions(), links()), (1, before), "the busy session stayed");
    node.check_call(&idle, 3).await;
    let new = node.session_of(REVISIONS[0]).await;
    node.check_call(&new, 4).await;
    assert_eq!((node.handle.sessions(), other.handle.sessions()), (3, 0));
    drained(drain(&node, Duration::from_secs(30))).await;
    assert_eq!(node.handle.sessions(), 0, "it drains again");
}

#[actix_rt::test]
async fn a_lone_node_keeps_a_busy_session_when_its_drain_is_taken_back() {
    let node = World::new();
    let busy = node.session().await;
    let (call, _) = stepping(&node, &busy).await;
    let draining = tokio::spawn({
        let handle = node.handle.clone();
        async move { handle.drain(Duration::from_secs(30)).await }
    });
    wait_until(|| node.handle.is_draining()).await;
    assert!(node.initialize().await.is_err(), "the node refuses new sessions");
    draining.abort();
    node.handle.cancel_drain();
    node.script.gate.notify_one();
    rest(call).await;
    node.check_call(&busy, 2).await;
    node.session().await;
    assert_eq!(node.handle.sessions(), 2);
    node.handle.close();
    node.handle.cancel_drain();
    assert!(node.handle.is_draining(), "a closed node accepts no session again");
}

#[actix_rt::test]
async fn a_duplex_session_opened_at_a_draining_node_is_created_by_another() {
    let [leaving, mut other] = Common::default().nodes().await;
    drained(drain(&leaving, Duration::from_secs(30))).await;
    for is_left in [true, false] {
        let opened = leaving.handle.connect(&leaving.tenant, &leaving.principal).await.unwrap();
        let (caller, mut pipe) = (leaving.caller(&opened.session), opened.replies);
        assert_eq!((leaving.handle.sessions(), other.handle.sessions()), (0, 1));
        let params = br#"{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
        let initialize = Request::new(0.into(), Method::Initialize, Some(params));
        posts(&leaving, &caller, initialize.into()).await;
        let events = messages(&[next(&mut pipe).await.unwrap()]);
        assert!(events[0].1.contains("2024-11-05"), "{events:?}");
        posts(&other, &caller, Notification::new(Method::Initialized, None).into()).await;
        let echo = br#"{"name":"echo"}"#;
        posts(&other, &caller, Request::new(1.into(), Method::ToolsCall, Some(echo)).into()).await;
        let events = messages(&[next(&mut pipe).await.unwrap()]);
        assert!(events[0].1.contains(r#""ok":true"#), "{events:?}");
        if is_left {
            drop(pipe);
            wait_until(|| other.handle.sessions() == 0).await;
        } else {
            // The session ends when its node fails, as a session of the client's own node would.
            other.kill();
            assert!(matches!(next(&mut pipe).await, Some(ReplyEvent::Abort)));
            assert!(next(&mut pipe).await.is_none());
        }
    }
}
