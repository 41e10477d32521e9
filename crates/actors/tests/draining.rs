//! A node drains: its sessions go on elsewhere, and its clients are sent there.

use std::time::Duration;

use crate::support::nodes::{Common, MOMENT, Node};
use crate::support::{PATIENCE, STEPS, World, all, messages, next, text, until};
use actors::{Answer, Caller, Frame, Refusal, ReplyEvent, ReplyStream};
use backends::LinkEvent;
use protocol::{Body, Method, Notification, Request};

/// Streams of the first begin with a cursor, those of the others do not.
const REVISIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

/// Begins to drain, and does not wait for the end of it.
fn drain(node: &Node, grace: Duration) -> tokio::task::JoinHandle<()> {
    let handle = node.handle.clone();
    tokio::spawn(async move { handle.drain(grace).await })
}

async fn drained(draining: tokio::task::JoinHandle<()>) {
    tokio::time::timeout(PATIENCE, draining).await.expect("drained in time").unwrap();
}

async fn listening(node: &World, caller: &Caller, after: Option<String>) -> ReplyStream {
    let mut replies = node.handle.listen(caller, after);
    let told = next(&mut replies).await;
    assert!(matches!(told, Some(ReplyEvent::Open { welcome: false, .. })), "{told:?}");
    replies
}

/// A call that has said something, and what it said.
async fn stepping(node: &World, caller: &Caller) -> (ReplyStream, Vec<(Option<String>, String)>) {
    let mut replies = node.call(caller, 1, "steps");
    let mut told = Vec::new();
    while messages(&told).len() < STEPS {
        told.push(next(&mut replies).await.expect("the stream ended"));
    }
    (replies, messages(&told))
}

/// What a client is told last, cursors and signs of life left out.
async fn rest(replies: ReplyStream) -> Vec<ReplyEvent> {
    let mut told = all(replies).await;
    told.retain(|told| !matches!(told, ReplyEvent::Frame(Frame::Cursor { .. } | Frame::KeepAlive)));
    told
}

#[track_caller]
fn sends_away(told: &[ReplyEvent]) {
    assert!(matches!(told, [ReplyEvent::Frame(Frame::Retry(500..=1_500))]), "{told:?}");
}

#[actix_rt::test]
async fn streams_that_clients_come_back_to_end_and_go_on_elsewhere() {
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
    other.works(&caller, 2).await;
    assert_eq!((leaving.handle.sessions(), other.handle.sessions()), (0, 1));
}

#[actix_rt::test]
async fn streams_that_clients_come_back_to_only_when_they_break_are_broken_or_left_alone() {
    for revision in &REVISIONS[1..] {
        let [leaving, other] = Common::default().nodes().await;
        let caller = leaving.session_of(revision).await;
        let listens = listening(&leaving, &caller, None).await;
        let (mut call, _) = stepping(&leaving, &caller).await;
        let draining = drain(&leaving, Duration::from_secs(30));
        let told = rest(listens).await;
        assert!(matches!(&told[..], [ReplyEvent::Abort]), "{revision}: {told:?}");
        let more = tokio::time::timeout(MOMENT, call.next()).await;
        assert!(more.is_err(), "{revision}: the call is left alone: {more:?}");
        other.script.gate.notify_one();
        let last = messages(&rest(call).await);
        assert!(matches!(&last[..], [(Some(_), last)] if last.contains("done")), "{last:?}");
        drained(draining).await;
    }
}

#[actix_rt::test]
async fn streams_at_other_nodes_go_on_where_they_are() {
    let [leaving, one, other] = Common::default().nodes().await;
    let caller = leaving.session_of(REVISIONS[0]).await;
    let mut streams = [
        listening(&one, &caller, None).await,
        listening(&other, &caller, None).await,
        listening(&other, &caller, None).await,
    ];
    drained(drain(&leaving, Duration::from_secs(30))).await;
    // One for each time the session came to a node.
    let links = || leaving.script.senders.lock().unwrap().len();
    let mut told = Vec::new();
    // Whoever of them reads takes it up.
    loop {
        tokio::select! {
            one = any(&mut streams) => told.push(one),
            () = until(|| links() == 2) => break,
        }
    }
    let message = Notification::new(Method::ToolsListChanged, None).into();
    let sender = leaving.script.senders.lock().unwrap().last().cloned().unwrap();
    sender.send(LinkEvent::Message { message, about: None }).await.unwrap();
    while messages(&told).is_empty() {
        told.push(any(&mut streams).await);
    }
    assert!(messages(&told)[0].1.contains("list_changed"), "{told:?}");
    assert_eq!(one.handle.sessions() + other.handle.sessions(), 1);
}

/// The next thing that any of these streams is told; none ends.
async fn any(streams: &mut [ReplyStream]) -> ReplyEvent {
    let nexts = streams.iter_mut().map(|stream| Box::pin(next(stream)));
    let (told, _, _) = futures_util::future::select_all(nexts).await;
    let told = told.expect("no stream ends");
    assert!(matches!(told, ReplyEvent::Frame(_)), "{told:?}");
    told
}

#[actix_rt::test]
async fn a_draining_node_has_its_sessions_taken_up_by_another_and_serves_on() {
    let [leaving, other] = Common::default().nodes().await;
    let caller = leaving.session_of(REVISIONS[0]).await;
    let foreign = other.session_of(REVISIONS[0]).await;
    leaving.works(&caller, 1).await;
    drained(drain(&leaving, Duration::from_secs(30))).await;
    assert!(leaving.handle.is_draining());
    // Nobody has come to another node yet.
    leaving.works(&caller, 2).await;
    leaving.works(&foreign, 3).await;
    assert_eq!((leaving.handle.sessions(), other.handle.sessions()), (0, 2));
    let ended = all(leaving.handle.delete(&caller)).await;
    assert!(matches!(&ended[..], [ReplyEvent::Answer(Answer::Ended)]), "{ended:?}");
}

#[actix_rt::test]
async fn sessions_that_are_opened_at_a_draining_node_are_made_by_another() {
    let [leaving, mut other] = Common::default().nodes().await;
    drained(drain(&leaving, Duration::from_secs(30))).await;
    for revision in REVISIONS {
        let caller = leaving.session_of(revision).await;
        leaving.works(&caller, 1).await;
        other.works(&caller, 2).await;
    }
    assert_eq!((leaving.handle.sessions(), other.handle.sessions()), (0, 3));
    let full = Caller {
        tenant: crate::support::tenant("acme", 3),
        ..leaving.session_of(REVISIONS[0]).await
    };
    let request = || Request::new(0.into(), Method::Initialize, None);
    let (tenant, principal) = (&full.tenant, &full.principal);
    let refused = leaving.handle.initialize(tenant, principal, request(), None).await.err();
    assert_eq!(refused, Some(Refusal::TooManySessions), "as it would say itself");
    // Nobody is left who would.
    drained(drain(&other, Duration::from_secs(30))).await;
    until(|| other.cluster.nodes().iter().all(|lease| lease.draining)).await;
    until(|| leaving.cluster.nodes().iter().all(|lease| lease.draining)).await;
    leaving.handle.close();
    let refused = leaving.handle.initialize(tenant, principal, request(), None).await.err();
    assert_eq!(refused, Some(Refusal::Stopping));
    other.kill();
}

#[actix_rt::test]
async fn a_node_that_leaves_has_sessions_made_where_fewest_are() {
    let [leaving, one, other] = Common::default().nodes().await;
    for (busy, idle) in [(&one, &other), (&other, &one)] {
        while busy.handle.sessions() < idle.handle.sessions() + 2 {
            busy.session_of(REVISIONS[0]).await;
        }
        let told = || {
            let leases = leaving.cluster.nodes();
            let load = |node: &Node| {
                let lease = |lease: &&store::Lease| lease.incarnation == node.cluster.incarnation();
                leases.iter().find(lease).map_or(0, |lease| lease.load)
            };
            load(busy) == busy.handle.sessions() as u64 && load(busy) == load(idle) + 2
        };
        until(told).await;
        if !leaving.handle.is_draining() {
            drained(drain(&leaving, Duration::from_secs(30))).await;
        }
        let before = idle.handle.sessions();
        leaving.session_of(REVISIONS[0]).await;
        assert_eq!(idle.handle.sessions(), before + 1);
    }
}

#[actix_rt::test]
async fn calls_that_come_while_a_session_leaves_are_made_where_it_goes() {
    let [leaving, other] = Common::default().nodes().await;
    let caller = leaving.session_of(REVISIONS[0]).await;
    let mut draining = None;
    for id in 0..200 {
        if id == 50 {
            draining = Some(drain(&leaving, Duration::from_secs(30)));
        }
        if id % 2 == 0 { &leaving } else { &other }.works(&caller, id).await;
    }
    drained(draining.unwrap()).await;
    let calls = leaving.script.calls.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(calls, 200, "each was made once");
    assert_eq!((leaving.handle.sessions(), other.handle.sessions()), (0, 1));
}

#[actix_rt::test]
async fn what_does_not_finish_in_time_ends_with_one_error() {
    for revision in REVISIONS {
        let [leaving, other] = Common::default().nodes().await;
        let caller = leaving.session_of(revision).await;
        let (stream, _) = stepping(&other, &caller).await;
        let silent = leaving.session_of(revision).await;
        let mut held = other.call(&silent, 2, "hang");
        let heard = || leaving.script.calls.load(std::sync::atomic::Ordering::SeqCst) == 2;
        tokio::select! {
            told = held.next() => panic!("{told:?}"),
            () = until(heard) => {}
        }
        drained(drain(&leaving, Duration::from_millis(100))).await;
        let last = messages(&rest(stream).await);
        assert!(matches!(&last[..], [(Some(_), e)] if e.contains(r#""id":1,"error""#)), "{last:?}");
        let told = all(held).await;
        let [ReplyEvent::Answer(Answer::Json(error))] = &told[..] else { panic!("{told:?}") };
        assert!(text(error).contains(r#""id":2,"error""#), "{told:?}");
        other.works(&caller, 3).await;
        other.works(&silent, 3).await;
    }
}

/// Posts what is accepted, and told on the one connection of its session.
async fn posts(node: &World, caller: &Caller, message: protocol::Message) {
    let told = all(node.handle.post(caller, Body::One(message), None)).await;
    assert!(matches!(&told[..], [ReplyEvent::Answer(Answer::Accepted)]), "{told:?}");
}

#[actix_rt::test]
async fn a_session_of_one_connection_that_is_opened_at_a_draining_node_is_made_by_another() {
    let [leaving, mut other] = Common::default().nodes().await;
    drained(drain(&leaving, Duration::from_secs(30))).await;
    for is_left in [true, false] {
        let opened = leaving.handle.connect(&leaving.tenant, &leaving.principal).await.unwrap();
        let (caller, mut pipe) = (leaving.caller(&opened.session), opened.replies);
        assert_eq!((leaving.handle.sessions(), other.handle.sessions()), (0, 1));
        let params = br#"{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"c","version":"1"}}"#;
        let initialize = Request::new(0.into(), Method::Initialize, Some(params));
        posts(&leaving, &caller, initialize.into()).await;
        let told = messages(&[next(&mut pipe).await.unwrap()]);
        assert!(told[0].1.contains("2024-11-05"), "{told:?}");
        posts(&other, &caller, Notification::new(Method::Initialized, None).into()).await;
        let echo = br#"{"name":"echo"}"#;
        posts(&other, &caller, Request::new(1.into(), Method::ToolsCall, Some(echo)).into()).await;
        let told = messages(&[next(&mut pipe).await.unwrap()]);
        assert!(told[0].1.contains(r#""ok":true"#), "{told:?}");
        if is_left {
            drop(pipe);
            until(|| other.handle.sessions() == 0).await;
        } else {
            // It is over with whoever has it, as it would be at home.
            other.kill();
            assert!(matches!(next(&mut pipe).await, Some(ReplyEvent::Abort)));
            assert!(next(&mut pipe).await.is_none());
        }
    }
}
