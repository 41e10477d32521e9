//! The behaviour of an owner while the store, which failed over, does not confirm it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::lossy_store::LossyStore;
use crate::support::nodes::{Common, MOMENT};
use crate::support::{PATIENCE, receive_all, wait_until};
use actors::{Answer, Caller, ReplyEvent};
use store::{Record, RecordStatus, Store};

/// A failover that lost the claim, and a store that rejects the re-assertion.
#[actix_rt::test]
async fn an_unconfirmed_owner_waits_and_continues_when_the_store_confirms_it() {
    let store = Arc::new(LossyStore::default());
    let shared: Arc<dyn Store> = Arc::clone(&store) as _;
    let [former, owner] = Common { store: Some(shared), ..Common::default() }.nodes().await;
    let caller = former.session_of("2025-11-25").await;
    let before = store.read(&caller.session).await.unwrap().expect("a record");
    former.inside(|world| async move { world.handle.drain(PATIENCE).await }).await;
    owner.check_call(&caller, 1).await;
    let calls = owner.script.requests.load(Ordering::SeqCst);

    forget(&store, &caller, &before).await;
    wait_until(|| owner.cluster.is_stable()).await;
    let waiting = actix_rt::spawn(receive_all(owner.call(&caller, 2, "echo")));
    tokio::time::sleep(MOMENT).await;
    assert!(!waiting.is_finished());
    assert_eq!(owner.script.requests.load(Ordering::SeqCst), calls);
    store.is_away.store(false, Ordering::SeqCst);
    let events = tokio::time::timeout(PATIENCE, waiting).await.expect("in time").unwrap();
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Json(_))]), "{events:?}");

    // A hand-over is delayed as well, and is not requested a second time.
    forget(&store, &caller, &before).await;
    wait_until(|| owner.cluster.is_stable()).await;
    owner
        .inside(|world| async move {
            actix_rt::spawn(async move { world.handle.drain(PATIENCE).await });
        })
        .await;
    tokio::time::sleep(MOMENT).await;
    let status = async || store.read(&caller.session).await.unwrap().unwrap().status;
    assert_eq!(status().await, RecordStatus::Owned);
    store.is_away.store(false, Ordering::SeqCst);
    let released = async {
        while status().await != RecordStatus::Released {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, released).await.expect("it should be handed over");
}

/// The store loses a claim and rejects the re-assertion.
async fn forget(store: &LossyStore, caller: &Caller, before: &Record) {
    let reassertions = store.reassertions.load(Ordering::SeqCst);
    store.is_away.store(true, Ordering::SeqCst);
    store.fail_over(&caller.session, before.clone()).await;
    wait_until(|| store.reassertions.load(Ordering::SeqCst) > reassertions).await;
}
