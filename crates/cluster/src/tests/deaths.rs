//! The effects of a node's death on calls and sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{Memory, Presence, Store};

use super::leases::FlakyStore;
use super::support::{TestNode, call, create_session_at, next, settings, wait_until};
use crate::{CallError, SessionLocation, Settings};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_call_to_a_node_that_is_killed_is_lost_within_a_second() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start(&store).await;
    let mut other = TestNode::start(&store).await;
    let peer = one.peer(&store, &other).await;
    let mut calling = peer.call(Bytes::from_static(b"silence"));
    other.wait_for_calls(1).await;

    other.kill();
    let killed = Instant::now();
    assert_eq!(next(&mut calling).await, Some(Err(CallError::Lost)));
    assert_eq!(next(&mut calling).await, None);
    assert!(killed.elapsed() < SECOND, "{:?}", killed.elapsed());
}

#[tokio::test]
async fn a_call_is_dropped_at_its_callee_when_the_callers_node_is_killed() {
    let store = Arc::new(Memory::default());
    let mut one = TestNode::start(&store).await;
    let other = TestNode::start(&store).await;
    let peer = one.peer(&store, &other).await;
    let _calling = peer.call(Bytes::from_static(b"silence"));
    other.wait_for_calls(1).await;
    one.kill();
    let dropped = other.answers.dropped.clone();
    wait_until("the call is dropped", || dropped.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn the_link_to_a_silent_node_breaks_within_a_second_and_the_node_is_not_marked_dead() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start(&store).await;
    let (other, proxy) = TestNode::start_behind_proxy(settings(), store.clone()).await;
    let peer = one.peer(&store, &other).await;
    let mut calling = peer.call(Bytes::from_static(b"silence"));
    other.wait_for_calls(1).await;

    proxy.drop_traffic();
    let silent = Instant::now();
    assert_eq!(next(&mut calling).await, Some(Err(CallError::Lost)));
    // A ping every 300 ms, and 600 ms for its pong; the rest is tolerance for a busy machine.
    assert!(silent.elapsed() < SECOND * 3 / 2, "{:?}", silent.elapsed());
    let presence = store.presence(other.cluster.incarnation()).await.unwrap();
    assert!(matches!(presence, Presence::Live(_)), "{presence:?}");
    // The other end detects it as well and drops the call.
    let dropped = other.answers.dropped.clone();
    wait_until("the call is dropped", || dropped.load(Ordering::SeqCst) == 1).await;
}

/// The node runs and its link works; only its store is unreachable.
#[tokio::test]
async fn a_call_to_a_node_whose_lease_is_over_is_lost() {
    let store = Arc::new(Memory::default());
    let away = FlakyStore::from(&store);
    let short = Settings { lease_ms: 600, margin_ms: 100, ..settings() };
    let one = TestNode::start_with(short.clone(), store.clone()).await;
    let other = TestNode::start_with(short, away.clone()).await;
    let peer = one.peer(&store, &other).await;
    let mut calling = peer.call(Bytes::from_static(b"silence"));
    other.wait_for_calls(1).await;

    away.away.store(true, Ordering::SeqCst);
    let lost = Instant::now();
    assert_eq!(next(&mut calling).await, Some(Err(CallError::Lost)));
    assert!(lost.elapsed() > Duration::from_millis(400), "{:?}", lost.elapsed());
    assert!(!other.cluster.may_act());
    // `peer` created a session of this name at that node.
    let session = other.cluster.incarnation().to_string();
    let found = one.find(&session).await;
    assert!(matches!(found, SessionLocation::Ownerless(..)), "{found:?}");

    away.away.store(false, Ordering::SeqCst);
    wait_until("its lease is back", || one.cluster.nodes().len() == 2).await;
    let found = one.find(&session).await;
    let SessionLocation::There(peer) = found else { panic!("found it {found:?}") };
    assert_eq!(call(&peer, "echo hello").await, [Ok("hello".to_owned())]);
}

#[tokio::test]
async fn a_call_to_a_node_that_is_gone_is_not_started() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start(&store).await;
    let mut other = TestNode::start(&store).await;
    let peer = one.peer(&store, &other).await;
    other.kill();
    assert_eq!(call(&peer, "echo hello").await, [Err(CallError::NotStarted)]);
}

#[tokio::test]
async fn the_sessions_of_a_killed_process_become_ownerless_long_before_its_lease_ends() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start(&store).await;
    let third = TestNode::start(&store).await;
    let mut other = TestNode::start(&store).await;
    for node in [&one, &third] {
        let peer = node.peer(&store, &other).await;
        assert_eq!(call(&peer, "echo hello").await, [Ok("hello".to_owned())]);
    }
    create_session_at(&store, "a-session", other.cluster.incarnation()).await;
    assert!(matches!(one.find("a-session").await, SessionLocation::There(_)));

    other.kill();
    let killed = Instant::now();
    while !matches!(one.find("a-session").await, SessionLocation::Ownerless(..)) {
        assert!(killed.elapsed() < SECOND * 2, "still not ownerless");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let presence = store.presence(other.cluster.incarnation()).await.unwrap();
    assert!(matches!(presence, Presence::Dead { .. }), "{presence:?}");
    assert!(one.cluster.may_act() && third.cluster.may_act());
}

#[tokio::test]
async fn a_process_restarted_at_its_address_is_not_taken_for_the_former() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start(&store).await;
    let mut former = TestNode::start(&store).await;
    let peer = one.peer(&store, &former).await;
    let address = former.cluster.address().to_owned();
    create_session_at(&store, "a-session", former.cluster.incarnation()).await;
    former.kill();

    let again = Settings { listen: address, ..settings() };
    let latter = TestNode::start_soon(again, store.clone()).await;
    assert_eq!(call(&peer, "echo hello").await, [Err(CallError::NotStarted)]);
    assert_eq!(latter.answers.calls.load(Ordering::SeqCst), 0);
    let restarted = Instant::now();
    while !matches!(one.find("a-session").await, SessionLocation::Ownerless(..)) {
        assert!(restarted.elapsed() < SECOND * 2, "still not ownerless");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let peer = one.peer(&store, &latter).await;
    assert_eq!(call(&peer, "echo hello").await, [Ok("hello".to_owned())]);
}

#[tokio::test]
async fn the_sessions_of_a_node_that_leaves_become_ownerless_at_once_and_it_takes_no_call() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start(&store).await;
    let other = TestNode::start(&store).await;
    let peer = one.peer(&store, &other).await;
    let mut calling = peer.call(Bytes::from_static(b"silence"));
    other.wait_for_calls(1).await;

    other.cluster.leave().await;
    assert!(!other.cluster.may_act());
    assert_eq!(next(&mut calling).await, Some(Err(CallError::Lost)));
    assert_eq!(call(&peer, "echo hello").await, [Err(CallError::NotStarted)]);
    let claim = other.cluster.incarnation();
    create_session_at(&store, "a-session", claim).await;
    let left = Instant::now();
    while !matches!(one.find("a-session").await, SessionLocation::Ownerless(..)) {
        assert!(left.elapsed() < SECOND, "still not ownerless");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
