//! Calls between nodes without faults.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{Memory, Presence, Store};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::support::{TestNode, call, next, settings, wait_until};
use crate::{CallError, Settings};
use peering::PIECE_BYTES_MAX;

async fn two() -> (Arc<Memory>, TestNode, TestNode) {
    let store = Arc::new(Memory::default());
    let (one, other) = (TestNode::start(&store).await, TestNode::start(&store).await);
    (store, one, other)
}

#[tokio::test]
async fn a_call_is_answered() {
    let (store, one, other) = two().await;
    let peer = one.peer(&store, &other).await;
    assert_eq!(call(&peer, "echo hello").await, [Ok("hello".to_owned())]);
    assert_eq!(call(&peer, "echo again").await, [Ok("again".to_owned())]);
}

#[tokio::test]
async fn nodes_call_each_other_at_once() {
    let (store, one, other) = two().await;
    let (there, back) = (one.peer(&store, &other).await, other.peer(&store, &one).await);
    let both = tokio::join!(call(&there, "echo there"), call(&back, "echo back"));
    assert_eq!(both, (vec![Ok("there".to_owned())], vec![Ok("back".to_owned())]));
}

#[tokio::test]
async fn a_call_that_is_refused_was_not_started() {
    let (store, one, other) = two().await;
    let peer = one.peer(&store, &other).await;
    assert_eq!(call(&peer, "refuse").await, [Err(CallError::NotStarted)]);
}

#[tokio::test]
async fn all_replies_arrive_in_order_however_many_there_are() {
    let (store, one, other) = two().await;
    let peer = one.peer(&store, &other).await;
    let expected: Vec<_> = (0..1_000).map(|n| Ok(n.to_string())).collect();
    assert_eq!(call(&peer, "count 1000").await, expected);
}

#[tokio::test]
async fn a_caller_that_takes_no_replies_blocks_its_own_call_and_no_other() {
    let (store, one, other) = two().await;
    let peer = one.peer(&store, &other).await;
    let mut slow = peer.call(Bytes::from_static(b"count 100"));
    assert_eq!(next(&mut slow).await, Some(Ok("0".to_owned())));
    let made = other.answers.replies_made.clone();
    wait_until("the window is used up", || made.load(Ordering::SeqCst) == 4).await;

    for _ in 0..10 {
        assert_eq!(call(&peer, "count 100").await.len(), 100);
    }
    assert_eq!(made.load(Ordering::SeqCst), 4 + 10 * 100);
    let rest = super::support::receive_all(&mut slow).await;
    assert_eq!(rest.len(), 99);
    assert_eq!(rest.last(), Some(&Ok("99".to_owned())));
}

#[tokio::test]
async fn a_call_is_dropped_at_its_callee_when_its_caller_is_gone() {
    let (store, one, other) = two().await;
    let peer = one.peer(&store, &other).await;
    let mut calling = peer.call(Bytes::from_static(b"count 100"));
    next(&mut calling).await;
    drop(calling);
    let dropped = other.answers.dropped.clone();
    wait_until("the replies are dropped", || dropped.load(Ordering::SeqCst) == 1).await;
    assert!(other.answers.replies_made.load(Ordering::SeqCst) < 100);
}

#[tokio::test]
async fn calls_beyond_the_bound_are_not_started() {
    let store = Arc::new(Memory::default());
    let few = Settings { calls_max: 2, ..settings() };
    let one = TestNode::start_with(few, store.clone()).await;
    let other = TestNode::start(&store).await;
    let peer = one.peer(&store, &other).await;
    let _first = peer.call(Bytes::from_static(b"silence"));
    let second = peer.call(Bytes::from_static(b"silence"));
    assert_eq!(call(&peer, "echo third").await, [Err(CallError::NotStarted)]);
    drop(second);
    assert_eq!(call(&peer, "echo third").await, [Ok("third".to_owned())]);
}

#[tokio::test]
async fn a_callee_with_too_many_calls_does_not_start_more() {
    let store = Arc::new(Memory::default());
    let few = Settings { calls_max: 2, ..settings() };
    let one = TestNode::start(&store).await;
    let other = TestNode::start_with(few, store.clone()).await;
    let peer = one.peer(&store, &other).await;
    let _under_way = [(); 2].map(|()| peer.call(Bytes::from_static(b"silence")));
    assert_eq!(call(&peer, "echo third").await, [Err(CallError::NotStarted)]);
}

#[tokio::test]
async fn a_message_that_is_too_large_fails_no_other_call() {
    let store = Arc::new(Memory::default());
    let small = Settings { message_bytes_max: 10_000, ..settings() };
    let one = TestNode::start_with(small.clone(), store.clone()).await;
    let other = TestNode::start_with(small, store.clone()).await;
    let peer = one.peer(&store, &other).await;
    let too_large = [Err(CallError::TooLarge { bytes_max: 10_000 })];
    assert_eq!(call(&peer, &"x".repeat(10_001)).await, too_large);
    assert_eq!(call(&peer, "large 10001").await, too_large);
    let whole = format!("echo {}", "x".repeat(9_995));
    assert_eq!(call(&peer, &whole).await, [Ok("x".repeat(9_995))]);
    assert_eq!(other.answers.calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_smaller_of_two_different_bounds_holds_and_the_link_stays() {
    let store = Arc::new(Memory::default());
    let small = Settings { message_bytes_max: 200_000, ..settings() };
    let one = TestNode::start(&store).await;
    let other = TestNode::start_with(small, store.clone()).await;
    let (there, back) = (one.peer(&store, &other).await, other.peer(&store, &one).await);
    let too_large = [Err(CallError::TooLarge { bytes_max: 200_000 })];
    assert_eq!(call(&there, &format!("echo {}", "x".repeat(200_000))).await, too_large);
    assert_eq!(other.answers.calls.load(Ordering::SeqCst), 0);
    assert_eq!(call(&there, "large 200001").await, too_large);
    // The callee's bound permits the reply; the caller rejects it, and the callee stops.
    assert_eq!(call(&back, "large 5000000").await, too_large);
    assert_eq!(call(&back, "large 200000").await, [Ok("x".repeat(200_000))]);
    let dropped = one.answers.dropped.clone();
    wait_until("the calls are over", || dropped.load(Ordering::SeqCst) == 2).await;
}

#[tokio::test]
async fn messages_of_many_frames_arrive_whole_both_ways() {
    let (store, one, other) = two().await;
    let peer = one.peer(&store, &other).await;
    let frame = PIECE_BYTES_MAX;
    for bytes in [frame - 5, frame - 4, frame, frame + 1, 2 * frame - 5, 20 << 20] {
        // The bytes differ, so that a swapped piece is detected.
        let text: String = ('a'..='z').cycle().take(bytes).collect();
        let replies = call(&peer, &format!("echo {text}")).await;
        assert!(replies == [Ok(text)], "{bytes} bytes");
    }
}

#[tokio::test]
async fn a_large_message_delays_no_small_one() {
    let (store, one, other) = two().await;
    let peer = one.peer(&store, &other).await;
    call(&peer, "echo hello").await;
    let large = Bytes::from(format!("echo {}", "x".repeat(50 << 20)));
    let mut calls = [peer.call(Bytes::from_static(b"large 50000000")), peer.call(large)];
    other.wait_for_calls(2).await;
    for _ in 0..3 {
        assert_eq!(call(&peer, "echo small").await, [Ok("small".to_owned())]);
    }
    for calling in &mut calls {
        let has_arrived =
            poll_fn(|context| Poll::Ready(calling.poll_next(context).is_ready())).await;
        assert!(!has_arrived, "the large replies arrived before the small one");
    }
    for calling in &mut calls {
        let reply = next(calling).await.unwrap().unwrap();
        assert!(reply.len() >= 50_000_000, "{}", reply.len());
    }
}

#[tokio::test]
async fn large_replies_that_are_not_taken_are_bounded_and_do_not_block_each_other() {
    let (store, one, other) = two().await;
    let peer = one.peer(&store, &other).await;
    let mut slow = peer.call(Bytes::from_static(b"several 20 1000000"));
    let made = other.answers.replies_made.clone();
    wait_until("the second reply is begun", || made.load(Ordering::SeqCst) == 2).await;
    // The first reply has arrived; one window of pieces of the second has.
    assert_eq!(call(&peer, "several 3 1000000").await.len(), 3);
    assert_eq!(made.load(Ordering::SeqCst), 2 + 3);
    let replies = super::support::receive_all(&mut slow).await;
    assert_eq!(replies.len(), 20);
    assert!(replies.iter().all(|reply| reply.as_ref().unwrap().len() == 1_000_000));
}

#[tokio::test]
async fn a_large_call_that_is_dropped_half_sent_is_never_begun() {
    let (store, one, other) = two().await;
    let peer = one.peer(&store, &other).await;
    call(&peer, "echo hello").await;
    for _ in 0..20 {
        drop(peer.call(Bytes::from(format!("echo {}", "x".repeat(40 << 20)))));
        // The unsent bytes no longer count: another call of this size is accepted.
        assert_eq!(call(&peer, "echo small").await, [Ok("small".to_owned())]);
    }
    assert_eq!(call(&peer, &format!("echo {}", "x".repeat(40 << 20))).await.len(), 1);
}

#[tokio::test]
async fn a_callee_takes_no_more_of_unfinished_calls_than_it_has_room_for() {
    let store = Arc::new(Memory::default());
    let small = 1_000_000;
    let small = Settings { waiting_bytes_max: small, message_bytes_max: small, ..settings() };
    let one = TestNode::start(&store).await;
    let other = TestNode::start_with(small, store.clone()).await;
    let peer = one.peer(&store, &other).await;
    let large = Bytes::from(format!("echo {}", "x".repeat(900_000)));
    let mut calls = [(); 4].map(|()| peer.call(large.clone()));
    let mut outcomes = Vec::new();
    for calling in &mut calls {
        outcomes.push(next(calling).await.unwrap().map(|reply| reply.len()));
    }
    assert!(outcomes.contains(&Ok(900_000)), "{outcomes:?}");
    let others = outcomes.iter().filter(|outcome| outcome.is_err());
    assert!(others.into_iter().all(|error| *error == Err(CallError::NotStarted)), "{outcomes:?}");
    assert_eq!(call(&peer, &format!("echo {}", "x".repeat(900_000))).await.len(), 1);
}

#[tokio::test]
async fn nodes_with_different_windows_answer_each_other() {
    for (caller, callee) in [(8, 32), (32, 8), (1, 32), (32, 1)] {
        let store = Arc::new(Memory::default());
        let with = |window| Settings { window, ..settings() };
        let one = TestNode::start_with(with(caller), store.clone()).await;
        let other = TestNode::start_with(with(callee), store.clone()).await;
        let peer = one.peer(&store, &other).await;
        assert_eq!(call(&peer, "count 100").await.len(), 100, "{caller} and {callee}");
        assert_eq!(call(&peer, "several 5 3000000").await.len(), 5, "{caller} and {callee}");
    }
}

#[tokio::test]
async fn a_peer_with_another_secret_is_refused() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start(&store).await;
    let stranger =
        Settings { secret: "not the secret of these, long enough".to_owned(), ..settings() };
    let other = TestNode::start_with(stranger, store.clone()).await;
    for (from, to) in [(&one, &other), (&other, &one)] {
        let peer = from.peer(&store, to).await;
        assert_eq!(call(&peer, "echo hello").await, [Err(CallError::NotStarted)]);
        assert_eq!(to.answers.calls.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn unproven_connections_are_bounded_and_closed_in_time() {
    let store = Arc::new(Memory::default());
    let patient = Settings { connect_ms: 2_000, ..settings() };
    let one = TestNode::start_with(patient, store.clone()).await;
    let mut connections = Vec::new();
    for _ in 0..64 {
        connections.push(TcpStream::connect(one.cluster.address()).await.unwrap());
    }
    let closed = async |connection: &mut TcpStream| {
        let mut received = Vec::new();
        let read = connection.read_to_end(&mut received);
        let _ = timeout(Duration::from_secs(10), read).await.expect("it should be closed");
    };
    // One more connection replaces the oldest.
    let mut more = TcpStream::connect(one.cluster.address()).await.unwrap();
    let connected = Instant::now();
    closed(&mut connections.remove(0)).await;
    assert!(connected.elapsed() < Duration::from_secs(1), "{:?}", connected.elapsed());
    let reads = more.read_u8();
    assert!(
        timeout(Duration::from_millis(300), reads).await.is_err(),
        "it should stay open for now"
    );
    // Unproven connections do not block a peer.
    let peer = TestNode::start(&store).await;
    let linked = || peer.cluster.node.peers.links_to(one.cluster.incarnation()) == 2;
    wait_until("a peer is linked", linked).await;
    assert!(connected.elapsed() < Duration::from_millis(1_800), "{:?}", connected.elapsed());
    closed(&mut more).await;
    for connection in &mut connections {
        closed(connection).await;
    }
}

#[tokio::test]
async fn the_connection_of_a_proven_peer_stays_open() {
    let store = Arc::new(Memory::default());
    let hasty = Settings { connect_ms: 200, ..settings() };
    let one = TestNode::start_with(hasty.clone(), store.clone()).await;
    let other = TestNode::start_with(hasty, store.clone()).await;
    let peer = other.peer(&store, &one).await;
    let mut calling = peer.call(Bytes::from_static(b"silence"));
    one.wait_for_calls(1).await;
    // Longer than unproven connections may stay open.
    let reply = timeout(Duration::from_millis(400), next(&mut calling)).await;
    assert!(reply.is_err(), "{reply:?}");
}

#[tokio::test]
async fn nodes_that_ping_at_different_intervals_stay_linked() {
    let store = Arc::new(Memory::default());
    // The other node's own interval alone would make it break the link after three seconds of
    // silence.
    let slow = Settings { ping_ms: 3_000, ..settings() };
    let one = TestNode::start_with(slow, store.clone()).await;
    let other = TestNode::start(&store).await;
    let (there, back) = (one.peer(&store, &other).await, other.peer(&store, &one).await);
    let mut calls = [there, back].map(|peer| peer.call(Bytes::from_static(b"silence")));
    one.wait_for_calls(1).await;
    other.wait_for_calls(1).await;
    for calling in &mut calls {
        let reply = timeout(Duration::from_millis(1_250), next(calling)).await;
        assert!(reply.is_err(), "{reply:?}");
    }
}

#[tokio::test]
async fn two_programs_that_read_a_common_version_use_the_newest() {
    let store = Arc::new(Memory::default());
    for (one, other, common) in [((2, 3), (2, 3), 3), ((2, 3), (1, 2), 2), ((3, 4), (2, 3), 3)] {
        let one = TestNode::start_with_versions(one.0, one.1, &store).await;
        let other = TestNode::start_with_versions(other.0, other.1, &store).await;
        let peer = one.peer(&store, &other).await;
        assert_eq!(call(&peer, "echo hello").await, [Ok("hello".to_owned())]);
        assert_eq!(peer.payload_version(), Some(common));
    }
}

#[tokio::test]
async fn two_programs_without_a_common_version_have_no_link_and_neither_is_marked_dead() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start_with_versions(3, 4, &store).await;
    let other = TestNode::start_with_versions(1, 2, &store).await;
    let third = TestNode::start_with_versions(2, 3, &store).await;
    for (from, to) in [(&one, &other), (&other, &one)] {
        let peer = from.peer(&store, to).await;
        assert_eq!(call(&peer, "echo hello").await, [Err(CallError::NotStarted)]);
        assert_eq!(peer.payload_version(), None);
        // The third node could relay the call, but the callee could not read it.
        assert!(from.cluster.relay(&peer, 0).is_none());
    }
    for node in [&one, &other] {
        let peer = third.peer(&store, node).await;
        assert_eq!(call(&peer, "echo hello").await, [Ok("hello".to_owned())]);
    }
    // Several times as long as the detection of a killed node takes.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for node in [&one, &other] {
        let presence = store.presence(node.cluster.incarnation()).await.unwrap();
        assert!(matches!(presence, Presence::Live(_)), "{presence:?}");
        assert!(node.cluster.may_act());
    }
}
