//! How a log writer performs what the ownership says, on a store that lets each operation through
//! when it is told to.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use ownership::machine::{Acquired, Claimable, Stabilisation};
use store::{
    Appended, Batch, Claimed, Digest, Error, Expected, Incarnation, Memory, Owner, PrimaryId,
    Record, RecordStatus, StoreLayer,
};
use tokio::sync::Semaphore;

use super::*;

const OWNED: Duration = Duration::from_secs(100);
const RELEASED: Duration = Duration::from_secs(30);
const ENDED: Duration = Duration::from_secs(60);

/// Writes down what it is asked, and waits before it does that.
struct Gated {
    memory: Arc<Memory>,
    gate: Semaphore,
    asked: Mutex<Vec<String>>,
    /// So many operations are done, and then said to have failed.
    failing: AtomicUsize,
}

impl Gated {
    async fn passes(&self, what: String) {
        self.asked.lock().unwrap().push(what);
        self.gate.acquire().await.unwrap().forget();
    }

    fn answer<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        let one_less = |failing: usize| failing.checked_sub(1);
        match self.failing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) {
            Ok(_) => Err(Error::Unavailable(io::ErrorKind::TimedOut.into())),
            Err(_) => result,
        }
    }
}

#[async_trait::async_trait]
impl StoreLayer for Gated {
    fn inner(&self) -> Result<Arc<dyn Store>, Error> {
        Ok(Arc::clone(&self.memory) as _)
    }
    async fn claim(
        &self,
        s: &SessionId,
        e: Expected,
        n: Owner,
        at: Option<PrimaryId>,
        t: Duration,
    ) -> Result<Claimed, Error> {
        let random = n.token.random;
        self.passes(format!("claim {random} for {} s", t.as_secs())).await;
        self.answer(self.memory.claim(s, e, n, at, t).await)
    }
    async fn append(&self, b: Batch) -> Result<Appended, Error> {
        self.passes(format!("append {} from {}", b.entries.len(), b.first)).await;
        self.answer(self.memory.append(b).await)
    }
    async fn reassert(&self, r: Record, b: Batch) -> Result<Appended, Error> {
        self.passes(format!("reassert {} from {}", b.entries.len(), b.first)).await;
        self.answer(self.memory.reassert(r, b).await)
    }
    async fn save(&self, s: &SessionId, t: Token, st: State) -> Result<u64, Error> {
        self.passes(format!("save {}", st.version)).await;
        self.answer(self.memory.save(s, t, st).await)
    }
    async fn release(
        &self,
        s: &SessionId,
        t: Token,
        at: Option<PrimaryId>,
        d: Duration,
    ) -> Result<(), Error> {
        self.passes(format!("release for {} s", d.as_secs())).await;
        self.answer(self.memory.release(s, t, at, d).await)
    }
    async fn end(&self, s: &SessionId, t: Token, d: Duration) -> Result<(), Error> {
        self.passes(format!("end for {} s", d.as_secs())).await;
        self.answer(self.memory.end(s, t, d).await)
    }
}

/// A log writer of a session that its store knows.
struct Scene {
    log_writer: LogWriter,
    store: Arc<Gated>,
    snapshot: LeaseSnapshot,
    /// How often ring and moment were asked for.
    looks: AtomicUsize,
}

impl Scene {
    async fn new() -> Self {
        let record = Record {
            owner: Owner { token: Token::first(1), node: Incarnation(1) },
            former: Vec::new(),
            tenant: "acme".into(),
            principal: Digest([7; 32]),
            revision: "2025-11-25".into(),
            initialize: (*b"{}").into(),
            state: State::default(),
            status: RecordStatus::Owned,
        };
        let session = SessionId::parse("a-session").unwrap();
        let memory = Arc::new(Memory::default());
        memory.create(&session, record.clone(), OWNED).await.unwrap();
        let (gate, asked) = (Semaphore::new(0), Mutex::default());
        let store = Arc::new(Gated { memory, gate, asked, failing: AtomicUsize::new(0) });
        let ownership = Ownership::new(
            session.clone(),
            record,
            Acquired { lease_generation: 0, failover_generation: 0 },
            OWNED,
            0,
        );
        let (owned, released, ended) = (OWNED.into(), RELEASED.into(), ENDED.into());
        let lifetimes = Lifetimes { owned, released, ended };
        let log_writer = LogWriter::new(ownership, lifetimes, 42);
        let snapshot = LeaseSnapshot {
            now: 0,
            lease_generation: Some(0),
            failover_generation: 0,
            stabilisation: Stabilisation::Done,
            claimable: Claimable::default(),
            primary: None,
        };
        Self { log_writer, store, snapshot, looks: AtomicUsize::new(0) }
    }

    fn push(&mut self, first: u64, entries: usize) {
        self.log_writer.push(first, 1, vec![Bytes::from_static(b"x"); entries]);
    }

    /// Lets so many operations through.
    fn poll(&mut self, through: usize) -> Vec<Outcome> {
        self.store.gate.add_permits(through);
        let (snapshot, looks) = (self.snapshot, &self.looks);
        let snapshot = || {
            looks.fetch_add(1, Ordering::SeqCst);
            snapshot
        };
        let ring = || (1, vec![Bytes::from_static(b"x"); 2]);
        let mut outcomes = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        let store: Arc<dyn Store> = Arc::clone(&self.store) as _;
        self.log_writer.poll(&mut context, &store, snapshot, ring, &mut outcomes);
        outcomes
    }

    fn at(&self, stabilisation: Stabilisation) -> LeaseSnapshot {
        LeaseSnapshot { stabilisation, ..self.snapshot }
    }

    /// What the store was asked since the last time.
    #[track_caller]
    fn asked(&self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut *self.store.asked.lock().unwrap()), expected);
    }
}

#[tokio::test]
async fn what_comes_while_something_is_under_way_goes_with_the_next() {
    let mut scene = Scene::new().await;
    scene.push(1, 1);
    assert_eq!(scene.poll(0), []);
    assert!(scene.log_writer.is_busy());
    scene.push(2, 1);
    scene.push(3, 2);
    assert_eq!(scene.poll(0), []);
    scene.asked(&["append 1 from 1"]);
    assert_eq!(scene.poll(1), [Outcome::Through(1)]);
    scene.asked(&["append 3 from 2"]);
    assert_eq!(scene.poll(1), [Outcome::Through(4)]);
    assert!(!scene.log_writer.is_busy());
}

#[tokio::test]
async fn where_nothing_is_to_be_done_nothing_is_asked_for() {
    let mut scene = Scene::new().await;
    assert_eq!(scene.poll(0), []);
    let looks = scene.looks.load(Ordering::SeqCst);
    assert!(!scene.log_writer.is_dirty());
    assert_eq!(scene.poll(9), []);
    assert_eq!(scene.looks.load(Ordering::SeqCst), looks);
    scene.asked(&[]);
}

#[tokio::test]
async fn what_failed_is_sent_again_whole_when_its_time_has_come() {
    let mut scene = Scene::new().await;
    scene.store.failing.store(1, Ordering::SeqCst);
    scene.push(1, 2);
    assert_eq!(scene.poll(1), []);
    scene.push(3, 1);
    assert_eq!(scene.poll(9), []);
    scene.asked(&["append 2 from 1"]);
    scene.snapshot.now = scene.log_writer.wake_at().expect("a time");
    scene.log_writer.mark_dirty();
    assert_eq!(scene.poll(0), [Outcome::Through(3)]);
    scene.asked(&["append 3 from 1"]);
}

#[tokio::test]
async fn a_release_comes_after_everything_and_an_end_before_it() {
    let mut scene = Scene::new().await;
    scene.push(1, 1);
    scene.log_writer.save(State { version: 5, bytes: [].into() });
    scene.log_writer.release();
    let all = [Outcome::Saved(5), Outcome::Through(1), Outcome::Released];
    assert_eq!(scene.poll(9), all);
    scene.asked(&["save 5", "append 1 from 1", "release for 30 s"]);

    let mut scene = Scene::new().await;
    scene.push(1, 1);
    scene.log_writer.end_session();
    assert_eq!(scene.poll(9), [Outcome::Ended]);
    scene.asked(&["end for 60 s"]);
    let (tombstone, _) = scene.log_writer.tombstone();
    assert_eq!(tombstone.status, RecordStatus::Ended);
}

#[tokio::test]
async fn each_claim_is_made_under_a_token_of_its_own() {
    let mut scene = Scene::new().await;
    let mut randoms = Vec::new();
    for lease_generation in 1..4 {
        // The lease lapsed, and came back.
        scene.snapshot.lease_generation = Some(lease_generation);
        scene.log_writer.mark_dirty();
        assert!(
            !scene.log_writer.may_act(Some(lease_generation), || scene.at(Stabilisation::Done))
        );
        let [Outcome::Reclaimed(token), ..] = scene.poll(9)[..] else { panic!("not claimed") };
        assert!(scene.log_writer.may_act(Some(lease_generation), || scene.at(Stabilisation::Done)));
        assert_eq!(scene.log_writer.token(), token);
        let claim = format!("claim {} for 100 s", token.random);
        scene.asked(&[&claim, "reassert 2 from 1"]);
        randoms.push(token.random);
    }
    assert_eq!(randoms[0], 42, "what it was given comes first");
    randoms.sort_unstable();
    randoms.dedup();
    assert_eq!(randoms.len(), 3);
}

#[tokio::test]
async fn a_claim_of_unknown_outcome_is_repeated_under_its_token() {
    let mut scene = Scene::new().await;
    scene.snapshot.lease_generation = Some(1);
    scene.store.failing.store(1, Ordering::SeqCst);
    assert_eq!(scene.poll(1), []);
    scene.snapshot.now = scene.log_writer.wake_at().expect("a time");
    scene.log_writer.mark_dirty();
    assert!(matches!(scene.poll(9)[..], [Outcome::Reclaimed(token), ..] if token.random == 42));
    scene.asked(&["claim 42 for 100 s", "claim 42 for 100 s", "reassert 2 from 1"]);
}

#[tokio::test]
async fn after_a_failover_that_the_store_has_not_answered_since_a_session_acts_until_others_may_claim()
 {
    let mut scene = Scene::new().await;
    assert_eq!(scene.poll(0), []);
    (scene.snapshot.failover_generation, scene.snapshot.stabilisation) = (1, Stabilisation::First);
    scene.store.failing.store(1, Ordering::SeqCst);
    scene.log_writer.mark_dirty();
    assert_eq!(scene.poll(1), []);
    assert!(scene.log_writer.may_act(Some(0), || scene.at(Stabilisation::First)));
    assert!(!scene.log_writer.may_act(Some(0), || scene.at(Stabilisation::Second)));
    assert!(!scene.log_writer.may_act(Some(0), || scene.at(Stabilisation::Done)));
    scene.snapshot.stabilisation = Stabilisation::Second;
    scene.snapshot.now = scene.log_writer.wake_at().expect("a time");
    scene.log_writer.mark_dirty();
    assert!(matches!(scene.poll(9)[..], [Outcome::Reclaimed(token), ..] if token.random == 42));
    scene.asked(&["reassert 2 from 1", "claim 42 for 100 s", "reassert 2 from 1"]);
    // What the store has said needs no lock.
    assert!(scene.log_writer.may_act(Some(0), || panic!("it is sure")));
}

#[tokio::test]
async fn a_failover_is_noticed_while_an_operation_is_under_way() {
    let mut scene = Scene::new().await;
    scene.push(1, 1);
    assert_eq!(scene.poll(0), []);
    assert!(scene.log_writer.is_busy());
    scene.log_writer.observe(0, || panic!("nothing has changed"));
    let snapshot = LeaseSnapshot { failover_generation: 1, ..scene.snapshot };
    scene.log_writer.observe(1, || snapshot);
    assert!(!scene.log_writer.may_act(Some(0), || scene.at(Stabilisation::Second)));
    scene.log_writer.observe(1, || panic!("nothing has changed since"));
}
