//! What an owner does while the store, which failed over, does not say that it is the owner.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actors::{Answer, Told};
use store::{Standing, Store};
use support::forgetful::Forgetful;
use support::nodes::Common;
use support::{PATIENCE, all, until};

/// A failover that forgot its claim, and a store that does not take it anew.
#[actix_rt::test]
async fn an_owner_in_doubt_waits_and_goes_on_at_once_when_the_store_confirms_it() {
    let store = Arc::new(Forgetful::default());
    let shared: Arc<dyn Store> = Arc::clone(&store) as _;
    let [former, owner] = Common { store: Some(shared), ..Common::default() }.nodes().await;
    let visit = former.session_of("2025-11-25").await;
    let before = store.read(&visit.session).await.unwrap().expect("a record");
    former.inside(|world| async move { world.handle.drain(PATIENCE).await }).await;
    owner.works(&visit, 1).await;
    let calls = owner.script.requests.load(Ordering::SeqCst);

    store.is_away.store(true, Ordering::SeqCst);
    store.fail_over(&visit.session, before).await;
    until(|| store.reassertions.load(Ordering::SeqCst) >= 1).await;
    until(|| owner.cluster.is_settled()).await;
    let waiting = actix_rt::spawn(all(owner.call(&visit, 2, "echo").await.unwrap()));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    assert_eq!(owner.script.requests.load(Ordering::SeqCst), calls);
    let leaving = owner.inside(|world| async move {
        actix_rt::spawn(async move { world.handle.drain(PATIENCE).await });
    });
    leaving.await;

    store.is_away.store(false, Ordering::SeqCst);
    let told = tokio::time::timeout(PATIENCE, waiting).await.expect("in time").unwrap();
    assert!(matches!(&told[..], [Told::Answer(Answer::Json(_))]), "{told:?}");
    // The hand-over waited as well.
    let is_released = async {
        while store.read(&visit.session).await.unwrap().unwrap().standing != Standing::Released {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_released).await.expect("it should be handed over");
}
