//! A session that has ended stays ended, also if a failover of the store lost the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::lossy_store::LossyStore;
use crate::support::nodes::{Common, Node};
use crate::support::{PATIENCE, receive_all, wait_until};
use actors::{Answer, Caller, Refusal, ReplyEvent, ReplyStream};
use store::{Record, RecordStatus, Store};

/// Two nodes, and a session at the first.
async fn live() -> ([Node; 2], Arc<LossyStore>, Caller) {
    let store = Arc::new(LossyStore::default());
    let shared: Arc<dyn Store> = Arc::clone(&store) as _;
    let nodes = Common { store: Some(shared), ..Common::default() }.nodes().await;
    let caller = nodes[0].session_of("2025-11-25").await;
    (nodes, store, caller)
}

/// Two nodes, an ended session of the first, and its record from before the end.
async fn ended() -> ([Node; 2], Arc<LossyStore>, Caller, Record) {
    let (nodes, store, caller) = live().await;
    let [owner, other] = &nodes;
    let record = store.read(&caller.session).await.unwrap().expect("a record");
    let events = receive_all(other.handle.delete(&caller)).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Ended)]), "{events:?}");
    owner.wait_until_empty().await;
    (nodes, store, caller, record)
}

/// Waits until the store holds the end of the session.
async fn is_over(store: &LossyStore, caller: &Caller) {
    let over = tokio::time::timeout(PATIENCE, async {
        while store.read(&caller.session).await.unwrap().unwrap().status != RecordStatus::Ended {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    over.await.expect("the store did not get the end of the session");
}

async fn is_unknown(nodes: &[Node], caller: &Caller) {
    for node in nodes {
        let events = receive_all(node.call(caller, 1, "echo")).await;
        let unknown = Answer::Refused(Refusal::UnknownSession);
        assert!(
            matches!(&events[..], [ReplyEvent::Answer(answer)] if *answer == unknown),
            "{events:?}"
        );
    }
}

#[actix_rt::test]
async fn a_session_that_a_failover_restored_is_ended_again() {
    let (nodes, store, caller, record) = ended().await;
    for _ in 0..2 {
        store.fail_over(&caller.session, record.clone()).await;
        is_over(&store, &caller).await;
    }
    is_unknown(&nodes, &caller).await;
}

#[actix_rt::test]
async fn tombstones_are_written_once_the_store_is_reachable_after_its_failover() {
    let (nodes, store, caller, record) = ended().await;
    store.is_away.store(true, Ordering::SeqCst);
    store.fail_over(&caller.session, record).await;
    wait_until(|| store.reassertions.load(Ordering::SeqCst) >= 2).await;
    assert_eq!(store.read(&caller.session).await.unwrap().unwrap().status, RecordStatus::Owned);
    store.is_away.store(false, Ordering::SeqCst);
    is_over(&store, &caller).await;
    is_unknown(&nodes, &caller).await;
}

#[actix_rt::test]
async fn an_end_lost_by_a_failover_does_not_end_a_session_that_another_owner_has_claimed() {
    let (nodes, store, caller, mut record) = ended().await;
    let owner = record.owner;
    record.former.insert(0, owner.token);
    record.owner.token = owner.token.next(42);
    record.owner.node = nodes[1].cluster.incarnation();
    store.fail_over(&caller.session, record.clone()).await;
    wait_until(|| store.reassertions.load(Ordering::SeqCst) >= 1).await;
    assert_eq!(store.read(&caller.session).await.unwrap(), Some(record));
}

/// Checks that no event arrives on the stream for a while.
async fn is_silent(replies: &mut ReplyStream) {
    let events = tokio::time::timeout(Duration::from_millis(300), replies.next()).await;
    assert!(events.is_err(), "{events:?}");
}

fn is_ended(events: &[ReplyEvent]) -> bool {
    matches!(events, [ReplyEvent::Answer(Answer::Ended)])
}

#[actix_rt::test]
async fn a_delete_is_answered_at_any_node_once_the_end_is_written() {
    let (nodes, store, caller) = live().await;
    let [owner, other] = &nodes;
    store.refuses_end.store(true, Ordering::SeqCst);
    let mut here = owner.handle.delete(&caller);
    is_silent(&mut here).await;
    let mut there = other.handle.delete(&caller);
    is_silent(&mut there).await;
    // Meanwhile the session accepts no other request.
    is_unknown(&nodes[..1], &caller).await;
    assert_eq!(store.read(&caller.session).await.unwrap().unwrap().status, RecordStatus::Owned);
    store.refuses_end.store(false, Ordering::SeqCst);
    let (here, there) = (receive_all(here).await, receive_all(there).await);
    assert!(is_ended(&here) && is_ended(&there), "{here:?} {there:?}");
    assert_eq!(store.read(&caller.session).await.unwrap().unwrap().status, RecordStatus::Ended);
    is_unknown(&nodes, &caller).await;
}

#[actix_rt::test]
async fn a_delete_whose_owner_dies_before_the_end_is_written_ends_the_session_at_the_next() {
    let (nodes, store, caller) = live().await;
    let [mut owner, other] = nodes;
    store.refuses_end.store(true, Ordering::SeqCst);
    let mut events = other.handle.delete(&caller);
    is_silent(&mut events).await;
    owner.kill();
    store.refuses_end.store(false, Ordering::SeqCst);
    let events = receive_all(events).await;
    assert!(is_ended(&events), "{events:?}");
    is_over(&store, &caller).await;
    is_unknown(&[other], &caller).await;
}

#[actix_rt::test]
async fn a_delete_whose_end_is_not_written_in_time_is_refused_and_the_end_still_attempted() {
    let (nodes, store, caller) = live().await;
    let [owner, other] = &nodes;
    store.refuses_end.store(true, Ordering::SeqCst);
    store.is_away.store(true, Ordering::SeqCst);
    let mut here = owner.handle.delete(&caller);
    let mut there = other.handle.delete(&caller);
    let unavailable = Answer::Refused(Refusal::Unavailable);
    // The owner waits 10 s.
    let patience = Duration::from_secs(15);
    let (here, there) = tokio::join!(
        tokio::time::timeout(patience, here.next()),
        tokio::time::timeout(patience, there.next()),
    );
    for events in [here, there] {
        assert!(
            matches!(&events, Ok(Some(ReplyEvent::Answer(answer))) if *answer == unavailable),
            "{events:?}"
        );
    }
    assert_eq!(store.read(&caller.session).await.unwrap().unwrap().status, RecordStatus::Owned);
    store.is_away.store(false, Ordering::SeqCst);
    is_over(&store, &caller).await;
    is_unknown(&nodes, &caller).await;
}
