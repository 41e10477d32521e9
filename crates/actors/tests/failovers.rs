//! What an owner does while the store, which failed over, does not say that it is the owner.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::forgetful::Forgetful;
use crate::support::nodes::{Common, MOMENT};
use crate::support::{PATIENCE, all, until};
use actors::{Answer, Caller, ReplyEvent};
use store::{Record, RecordStatus, Store};

/// A failover that forgot its claim, and a store that does not take it anew.
#[actix_rt::test]
async fn an_owner_in_doubt_waits_and_goes_on_when_the_store_confirms_it() {
    let store = Arc::new(Forgetful::default());
    let shared: Arc<dyn Store> = Arc::clone(&store) as _;
    let [former, owner] = Common { store: Some(shared), ..Common::default() }.nodes().await;
    let caller = former.session_of("2025-11-25").await;
    let before = store.read(&caller.session).await.unwrap().expect("a record");
    former.inside(|world| async move { world.handle.drain(PATIENCE).await }).await;
    owner.works(&caller, 1).await;
    let calls = owner.script.requests.load(Ordering::SeqCst);

    forget(&store, &caller, &before).await;
    until(|| owner.cluster.is_stable()).await;
    let waiting = actix_rt::spawn(all(owner.call(&caller, 2, "echo")));
    tokio::time::sleep(MOMENT).await;
    assert!(!waiting.is_finished());
    assert_eq!(owner.script.requests.load(Ordering::SeqCst), calls);
    store.is_away.store(false, Ordering::SeqCst);
    let told = tokio::time::timeout(PATIENCE, waiting).await.expect("in time").unwrap();
    assert!(matches!(&told[..], [ReplyEvent::Answer(Answer::Json(_))]), "{told:?}");

    // A hand-over is delayed as well, and is not requested a second time.
    forget(&store, &caller, &before).await;
    until(|| owner.cluster.is_stable()).await;
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

/// The store forgets a claim, and does not take the session anew.
async fn forget(store: &Forgetful, caller: &Caller, before: &Record) {
    let reassertions = store.reassertions.load(Ordering::SeqCst);
    store.is_away.store(true, Ordering::SeqCst);
    store.fail_over(&caller.session, before.clone()).await;
    until(|| store.reassertions.load(Ordering::SeqCst) > reassertions).await;
}
