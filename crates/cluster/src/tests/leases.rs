//! When a node may act, and when it may declare other nodes gone.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use protocol::SessionId;
use store::{
    Claimed, Error, Expected, Incarnation, Lease, Memory, Owner, Primary, PrimaryId, Record,
    Renewed, Store, StoreLayer, Token,
};

use super::support::{Answers, create_session_at, session, settings, wait_until};
use crate::clock::Clock;
use crate::{Cluster, SessionLocation, Settings, Versions};

/// A store that can be made unreachable, and that counts requests.
#[derive(Default)]
pub(super) struct FlakyStore {
    pub(super) memory: Arc<Memory>,
    pub(super) away: AtomicBool,
    reads: AtomicU64,
    renewals: AtomicU64,
    /// The id of the primary: 0 never fails over.
    primary: AtomicU64,
    /// Fails each claim, and moves to the next primary.
    loses_claims: AtomicBool,
    /// The primary that each claim named.
    claims: Mutex<Vec<Option<PrimaryId>>>,
}

impl FlakyStore {
    /// A handle of a store that other handles share.
    pub(super) fn from(memory: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Self { memory: memory.clone(), ..Self::default() })
    }
}

#[async_trait::async_trait]
impl StoreLayer for FlakyStore {
    fn inner(&self) -> Result<Arc<dyn Store>, Error> {
        if self.away.load(Ordering::SeqCst) {
            return Err(Error::Unavailable(io::ErrorKind::TimedOut.into()));
        }
        Ok(Arc::clone(&self.memory) as _)
    }
    async fn read(&self, id: &SessionId) -> Result<Option<Record>, Error> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner()?.read(id).await
    }
    async fn claim(
        &self,
        id: &SessionId,
        expected: Expected,
        new: Owner,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<Claimed, Error> {
        self.claims.lock().unwrap().push(at);
        if self.loses_claims.load(Ordering::SeqCst) {
            self.primary.fetch_add(1, Ordering::SeqCst);
            return Err(Error::Unavailable(io::ErrorKind::TimedOut.into()));
        }
        // The primary of the in-memory store has another id.
        let at = at.filter(|_| self.primary.load(Ordering::SeqCst) == 0);
        self.inner()?.claim(id, expected, new, at, ttl).await
    }
    async fn renew(&self, lease: Lease, ttl: Duration) -> Result<Renewed, Error> {
        let renewed = self.inner()?.renew(lease, ttl).await;
        self.renewals.fetch_add(1, Ordering::SeqCst);
        renewed
    }
    async fn primaries(&self) -> Result<Vec<Primary>, Error> {
        self.inner()?;
        let id = PrimaryId(self.primary.load(Ordering::SeqCst).into());
        Ok(vec![Primary::of_everything(id)])
    }
}

/// A node whose clock, in milliseconds, is set by the test.
pub(super) async fn node(store: &Arc<FlakyStore>, settings: Settings) -> (Cluster, Arc<AtomicU64>) {
    let millis = Arc::new(AtomicU64::new(1_000));
    let read = millis.clone();
    let clock: Clock = Arc::new(move || Duration::from_millis(read.load(Ordering::SeqCst)));
    let serve = Arc::new(Answers::default());
    let membership =
        Cluster::join_by(clock, settings, store.clone(), Versions::UNANNOUNCED).await.unwrap();
    (membership.serve(serve), millis)
}

/// Settings with a short renewal interval and a lease of 6 s.
fn fast_renewals() -> Settings {
    Settings { renew_ms: 5, ..settings() }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_starts_while_its_store_is_unreachable_waits_for_it() {
    let store = Arc::new(FlakyStore::default());
    store.away.store(true, Ordering::SeqCst);
    let comes_back = async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        store.away.store(false, Ordering::SeqCst);
    };
    let ((cluster, _), ()) = tokio::join!(node(&store, fast_renewals()), comes_back);
    assert!(cluster.may_act());
}

#[tokio::test]
async fn a_node_that_cannot_renew_stops_acting_a_margin_before_its_lease_ends() {
    let store = Arc::new(FlakyStore::default());
    let (cluster, clock) = node(&store, fast_renewals()).await;
    assert_eq!(cluster.valid_lease_generation(), Some(0));
    store.away.store(true, Ordering::SeqCst);
    // Waits for a renewal that may be in progress.
    let before = store.renewals.load(Ordering::SeqCst);
    clock.fetch_add(4_999, Ordering::SeqCst);
    assert!(cluster.may_act());
    clock.fetch_add(1, Ordering::SeqCst);
    assert_eq!(store.renewals.load(Ordering::SeqCst), before);
    assert!(!cluster.may_act());

    store.away.store(false, Ordering::SeqCst);
    wait_until("it renews", || cluster.may_act()).await;
    // Another node may have seen that its lease had lapsed.
    assert_eq!(cluster.valid_lease_generation(), Some(1));
}

#[tokio::test]
async fn a_node_that_renews_its_lease_keeps_its_lease_generation() {
    let store = Arc::new(FlakyStore::default());
    let (cluster, clock) = node(&store, fast_renewals()).await;
    for _ in 0..10 {
        clock.fetch_add(4_000, Ordering::SeqCst);
        let now = store.renewals.load(Ordering::SeqCst);
        // One renewal may have been sent before the clock moved.
        wait_until("it renews", || store.renewals.load(Ordering::SeqCst) > now + 1).await;
        assert_eq!(cluster.valid_lease_generation(), Some(0));
    }
}

#[tokio::test]
async fn a_node_marked_dead_is_notified_and_never_acts_again() {
    let store = Arc::new(FlakyStore::default());
    let (cluster, _) = node(&store, fast_renewals()).await;
    let (other, _) = node(&store, fast_renewals()).await;
    let (dead, by) = (cluster.incarnation(), other.incarnation());
    store.memory.mark_dead(dead, by, &[], None, Duration::from_secs(60)).await.unwrap();
    cluster.marked_dead().await;
    assert!(!cluster.may_act());
    assert!(other.may_act());
}

#[tokio::test]
async fn a_node_without_a_lease_declares_no_other_node_gone() {
    let store = Arc::new(FlakyStore::default());
    let (cluster, clock) = node(&store, Settings { renew_ms: 2_500, ..settings() }).await;
    create_session_at(&store.memory, "a-session", Incarnation(7)).await;
    let found = cluster.locate(&session("a-session"), false).await.unwrap();
    assert!(matches!(found, SessionLocation::Ownerless(..)), "{found:?}");
    clock.fetch_add(5_000, Ordering::SeqCst);
    let found = cluster.locate(&session("a-session"), false).await;
    assert!(matches!(found, Err(crate::Error::NoLease)), "{found:?}");
}

#[tokio::test]
async fn a_claim_names_the_primary_by_which_it_was_judged() {
    let store = Arc::new(FlakyStore::default());
    store.primary.store(7, Ordering::SeqCst);
    let (cluster, clock) = node(&store, fast_renewals()).await;
    create_session_at(&store.memory, "a-session", Incarnation(9)).await;
    let id = session("a-session");
    let record = store.memory.read(&id).await.unwrap().unwrap();
    clock.fetch_add(1_100, Ordering::SeqCst);
    assert!(cluster.is_stable());

    // The failed claim is not repeated at the next primary, which has not been read yet.
    store.loses_claims.store(true, Ordering::SeqCst);
    let claimed = cluster.claim(&id, &record, Duration::from_secs(60)).await;
    assert!(matches!(claimed, Err(crate::Error::Stabilisation)), "{claimed:?}");
    let judged = std::mem::take(&mut *store.claims.lock().unwrap());
    assert!(judged.iter().all(|by| *by == Some(PrimaryId(7))), "{judged:?}");

    store.loses_claims.store(false, Ordering::SeqCst);
    let now = store.primary.load(Ordering::SeqCst);
    wait_until("the failover was seen", || !cluster.is_stable()).await;
    clock.fetch_add(1_100, Ordering::SeqCst);
    cluster.claim(&id, &record, Duration::from_secs(60)).await.unwrap();
    assert_eq!(*store.claims.lock().unwrap(), [Some(PrimaryId(now.into()))]);
}

#[tokio::test]
async fn a_session_elsewhere_is_looked_up_once() {
    let store = Arc::new(FlakyStore::default());
    let (cluster, _) = node(&store, fast_renewals()).await;
    let (other, _) = node(&store, fast_renewals()).await;
    create_session_at(&store.memory, "a-session", other.incarnation()).await;
    for _ in 0..10 {
        let found = cluster.locate(&session("a-session"), false).await.unwrap();
        assert!(matches!(found, SessionLocation::There(_)), "{found:?}");
    }
    assert_eq!(store.reads.load(Ordering::SeqCst), 1);
    cluster.locate(&session("a-session"), true).await.unwrap();
    assert_eq!(store.reads.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_session_is_here_ownerless_ended_or_unknown_as_its_record_says() {
    let store = Arc::new(FlakyStore::default());
    let (cluster, _) = node(&store, fast_renewals()).await;
    let (me, ttl) = (cluster.incarnation(), Duration::from_secs(60));
    for name in ["here", "released", "ended"] {
        create_session_at(&store.memory, name, me).await;
    }
    store.memory.release(&session("released"), Token::first(me.0), None, ttl).await.unwrap();
    store.memory.end(&session("ended"), Token::first(me.0), ttl).await.unwrap();
    let mut found = Vec::new();
    for name in ["here", "released", "ended", "never-made"] {
        found.push(cluster.locate(&session(name), false).await.unwrap());
    }
    use SessionLocation::{Ended, Here, Ownerless, Unknown};
    assert!(matches!(&found[..], [Here(_), Ownerless(..), Ended(_), Unknown]), "{found:?}");
}

#[tokio::test]
async fn a_lease_announces_draining_load_and_name() {
    let store = Arc::new(FlakyStore::default());
    let settings = Settings { name: "one".to_owned(), ..fast_renewals() };
    let membership = Cluster::join(settings, store.clone(), Versions::UNANNOUNCED).await.unwrap();
    let cluster = membership.serve(Arc::new(Answers::default()));
    let (other, _) = node(&store, fast_renewals()).await;
    cluster.load().set(3);
    cluster.set_draining(true);
    let is_announced = || {
        let leases = other.nodes();
        let lease = leases.iter().find(|lease| lease.incarnation == cluster.incarnation());
        lease.is_some_and(|l| l.draining && l.load == 3 && &*l.name == "one")
    };
    wait_until("the lease is announced", is_announced).await;
}
