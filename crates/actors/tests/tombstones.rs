//! What has ended stays ended, also where a failover of the store forgot the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::forgetful::Forgetful;
use crate::support::nodes::{Common, Node};
use crate::support::{PATIENCE, all, until};
use actors::{Answer, Caller, Refusal, ReplyEvent, ReplyStream};
use store::{Record, RecordStatus, Store};

/// Two nodes, and a session that lives at the first.
async fn live() -> ([Node; 2], Arc<Forgetful>, Caller) {
    let store = Arc::new(Forgetful::default());
    let shared: Arc<dyn Store> = Arc::clone(&store) as _;
    let nodes = Common { store: Some(shared), ..Common::default() }.nodes().await;
    let caller = nodes[0].session_of("2025-11-25").await;
    (nodes, store, caller)
}

/// Two nodes, a session that lived at the first, and its record from before it was ended.
async fn ended() -> ([Node; 2], Arc<Forgetful>, Caller, Record) {
    let (nodes, store, caller) = live().await;
    let [owner, other] = &nodes;
    let record = store.read(&caller.session).await.unwrap().expect("a record");
    let told = all(other.handle.delete(&caller)).await;
    assert!(matches!(&told[..], [ReplyEvent::Answer(Answer::Ended)]), "{told:?}");
    owner.is_empty().await;
    (nodes, store, caller, record)
}

/// Waits until the store says that the session is over.
async fn is_over(store: &Forgetful, caller: &Caller) {
    let over = tokio::time::timeout(PATIENCE, async {
        while store.read(&caller.session).await.unwrap().unwrap().status != RecordStatus::Ended {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    over.await.expect("the session stays as it was before its end");
}

async fn is_unknown(nodes: &[Node], caller: &Caller) {
    for node in nodes {
        let told = all(node.call(caller, 1, "echo")).await;
        let unknown = Answer::Refused(Refusal::UnknownSession);
        assert!(
            matches!(&told[..], [ReplyEvent::Answer(answer)] if *answer == unknown),
            "{told:?}"
        );
    }
}

#[actix_rt::test]
async fn a_session_that_a_failover_brought_back_is_ended_again() {
    let (nodes, store, caller, record) = ended().await;
    for _ in 0..2 {
        store.fail_over(&caller.session, record.clone()).await;
        is_over(&store, &caller).await;
    }
    is_unknown(&nodes, &caller).await;
}

#[actix_rt::test]
async fn a_store_that_is_away_after_its_failover_is_told_when_it_is_back() {
    let (nodes, store, caller, record) = ended().await;
    store.is_away.store(true, Ordering::SeqCst);
    store.fail_over(&caller.session, record).await;
    until(|| store.reassertions.load(Ordering::SeqCst) >= 2).await;
    assert_eq!(store.read(&caller.session).await.unwrap().unwrap().status, RecordStatus::Owned);
    store.is_away.store(false, Ordering::SeqCst);
    is_over(&store, &caller).await;
    is_unknown(&nodes, &caller).await;
}

#[actix_rt::test]
async fn an_end_that_a_failover_forgot_does_not_end_what_is_anothers_since() {
    let (nodes, store, caller, mut record) = ended().await;
    let owner = record.owner;
    record.former.insert(0, owner.token);
    record.owner.token = owner.token.next(42);
    record.owner.node = nodes[1].cluster.incarnation();
    store.fail_over(&caller.session, record.clone()).await;
    until(|| store.reassertions.load(Ordering::SeqCst) >= 1).await;
    assert_eq!(store.read(&caller.session).await.unwrap(), Some(record));
}

/// Nothing is told on it for a while.
async fn is_silent(replies: &mut ReplyStream) {
    let told = tokio::time::timeout(Duration::from_millis(300), replies.next()).await;
    assert!(told.is_err(), "{told:?}");
}

fn is_ended(told: &[ReplyEvent]) -> bool {
    matches!(told, [ReplyEvent::Answer(Answer::Ended)])
}

#[actix_rt::test]
async fn a_delete_is_answered_when_its_end_is_written_wherever_it_came_to() {
    let (nodes, store, caller) = live().await;
    let [owner, other] = &nodes;
    store.is_endless.store(true, Ordering::SeqCst);
    let mut here = owner.handle.delete(&caller);
    is_silent(&mut here).await;
    let mut there = other.handle.delete(&caller);
    is_silent(&mut there).await;
    // Meanwhile the session takes nothing else.
    is_unknown(&nodes[..1], &caller).await;
    assert_eq!(store.read(&caller.session).await.unwrap().unwrap().status, RecordStatus::Owned);
    store.is_endless.store(false, Ordering::SeqCst);
    let (here, there) = (all(here).await, all(there).await);
    assert!(is_ended(&here) && is_ended(&there), "{here:?} {there:?}");
    assert_eq!(store.read(&caller.session).await.unwrap().unwrap().status, RecordStatus::Ended);
    is_unknown(&nodes, &caller).await;
}

#[actix_rt::test]
async fn a_delete_whose_owner_dies_before_the_end_is_written_ends_the_session_at_the_next() {
    let (nodes, store, caller) = live().await;
    let [mut owner, other] = nodes;
    store.is_endless.store(true, Ordering::SeqCst);
    let mut told = other.handle.delete(&caller);
    is_silent(&mut told).await;
    owner.kill();
    store.is_endless.store(false, Ordering::SeqCst);
    let told = all(told).await;
    assert!(is_ended(&told), "{told:?}");
    is_over(&store, &caller).await;
    is_unknown(&[other], &caller).await;
}

#[actix_rt::test]
async fn a_delete_whose_end_is_not_written_in_time_is_refused_and_the_end_still_attempted() {
    let (nodes, store, caller) = live().await;
    let [owner, other] = &nodes;
    store.is_endless.store(true, Ordering::SeqCst);
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
    for told in [here, there] {
        assert!(
            matches!(&told, Ok(Some(ReplyEvent::Answer(answer))) if *answer == unavailable),
            "{told:?}"
        );
    }
    assert_eq!(store.read(&caller.session).await.unwrap().unwrap().status, RecordStatus::Owned);
    store.is_away.store(false, Ordering::SeqCst);
    is_over(&store, &caller).await;
    is_unknown(&nodes, &caller).await;
}
