//! The operations of a log writer, on a store that lets each one through when the test permits it.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use ownership::machine::{Acquired, Claimable, Stabilisation};
use store::{
    Appended, Batch, Claimed, Digest, Error, Expected, Incarnation, Memory, Owner, PrimaryId,
    Record, RecordStatus, State, StateExtension, StoreLayer,
};
use tokio::sync::Semaphore;

use super::*;

const OWNED: Duration = Duration::from_secs(100);
const RELEASED: Duration = Duration::from_secs(30);
const ENDED: Duration = Duration::from_secs(60);

/// Records each operation, and waits for the test before it performs the operation.
struct GatedStore {
    memory: Arc<Memory>,
    gate: Semaphore,
    asked: Mutex<Vec<String>>,
    /// The number of operations that are done and reported as failed.
    failing: AtomicUsize,
}

impl GatedStore {
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
impl StoreLayer for GatedStore {
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
    async fn extend_state(
        &self,
        s: &SessionId,
        t: Token,
        extension: StateExtension,
    ) -> Result<u64, Error> {
        self.passes(format!("extend {} to {}", extension.after, extension.version)).await;
        self.answer(self.memory.extend_state(s, t, extension).await)
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

/// A log writer for a session with a record in the store.
struct Setup {
    log_writer: LogWriter,
    store: Arc<GatedStore>,
    snapshot: LeaseSnapshot,
    /// The number of calls for the ring and the snapshot.
    looks: AtomicUsize,
}

impl Setup {
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
        let store = Arc::new(GatedStore { memory, gate, asked, failing: AtomicUsize::new(0) });
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

    /// Lets this number of operations through.
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

    /// Checks the operations that the store received since the last check.
    #[track_caller]
    fn check_operations(&self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut *self.store.asked.lock().unwrap()), expected);
    }
}

#[tokio::test]
async fn entries_pushed_during_an_operation_go_with_the_next() {
    let mut setup = Setup::new().await;
    setup.push(1, 1);
    assert_eq!(setup.poll(0), []);
    assert!(setup.log_writer.is_busy());
    setup.push(2, 1);
    setup.push(3, 2);
    assert_eq!(setup.poll(0), []);
    setup.check_operations(&["append 1 from 1"]);
    assert_eq!(setup.poll(1), [Outcome::Through(1)]);
    setup.check_operations(&["append 3 from 2"]);
    assert_eq!(setup.poll(1), [Outcome::Through(4)]);
    assert!(!setup.log_writer.is_busy());
}

#[tokio::test]
async fn a_writer_without_work_reads_no_ring_and_no_snapshot() {
    let mut setup = Setup::new().await;
    assert_eq!(setup.poll(0), []);
    let looks = setup.looks.load(Ordering::SeqCst);
    assert!(!setup.log_writer.is_dirty());
    assert_eq!(setup.poll(9), []);
    assert_eq!(setup.looks.load(Ordering::SeqCst), looks);
    setup.check_operations(&[]);
}

#[tokio::test]
async fn a_failed_append_is_repeated_with_all_entries_after_its_wait() {
    let mut setup = Setup::new().await;
    setup.store.failing.store(1, Ordering::SeqCst);
    setup.push(1, 2);
    assert_eq!(setup.poll(1), []);
    setup.push(3, 1);
    assert_eq!(setup.poll(9), []);
    setup.check_operations(&["append 2 from 1"]);
    setup.snapshot.now = setup.log_writer.wake_at().expect("a time");
    setup.log_writer.mark_dirty();
    assert_eq!(setup.poll(0), [Outcome::Through(3)]);
    setup.check_operations(&["append 3 from 1"]);
}

#[tokio::test]
async fn a_release_is_the_last_operation_and_an_end_the_next() {
    let mut setup = Setup::new().await;
    setup.push(1, 1);
    setup.log_writer.save(5, StateChange::Whole([].into()));
    setup.log_writer.release();
    let all = [Outcome::Saved(5), Outcome::Through(1), Outcome::Released];
    assert_eq!(setup.poll(9), all);
    setup.check_operations(&["save 5", "append 1 from 1", "release for 30 s"]);

    let mut setup = Setup::new().await;
    setup.push(1, 1);
    setup.log_writer.end_session();
    assert_eq!(setup.poll(9), [Outcome::Ended]);
    setup.check_operations(&["end for 60 s"]);
    let (tombstone, _) = setup.log_writer.tombstone();
    assert_eq!(tombstone.status, RecordStatus::Ended);
}

#[tokio::test]
async fn each_claim_is_made_under_a_token_of_its_own() {
    let mut setup = Setup::new().await;
    let mut randoms = Vec::new();
    for lease_generation in 1..4 {
        // The lease lapsed, and came back.
        setup.snapshot.lease_generation = Some(lease_generation);
        setup.log_writer.mark_dirty();
        assert!(
            !setup.log_writer.may_act(Some(lease_generation), || setup.at(Stabilisation::Done))
        );
        let [Outcome::Reclaimed(token), ..] = setup.poll(9)[..] else { panic!("not claimed") };
        assert!(setup.log_writer.may_act(Some(lease_generation), || setup.at(Stabilisation::Done)));
        assert_eq!(setup.log_writer.token(), token);
        let claim = format!("claim {} for 100 s", token.random);
        setup.check_operations(&[&claim, "reassert 2 from 1"]);
        randoms.push(token.random);
    }
    assert_eq!(randoms[0], 42, "what it was given comes first");
    randoms.sort_unstable();
    randoms.dedup();
    assert_eq!(randoms.len(), 3);
}

#[tokio::test]
async fn a_claim_of_unknown_outcome_is_repeated_under_its_token() {
    let mut setup = Setup::new().await;
    setup.snapshot.lease_generation = Some(1);
    setup.store.failing.store(1, Ordering::SeqCst);
    assert_eq!(setup.poll(1), []);
    setup.snapshot.now = setup.log_writer.wake_at().expect("a time");
    setup.log_writer.mark_dirty();
    assert!(matches!(setup.poll(9)[..], [Outcome::Reclaimed(token), ..] if token.random == 42));
    setup.check_operations(&["claim 42 for 100 s", "claim 42 for 100 s", "reassert 2 from 1"]);
}

#[tokio::test]
async fn an_unconfirmed_owner_acts_after_a_failover_until_others_may_claim() {
    let mut setup = Setup::new().await;
    assert_eq!(setup.poll(0), []);
    (setup.snapshot.failover_generation, setup.snapshot.stabilisation) = (1, Stabilisation::First);
    setup.store.failing.store(1, Ordering::SeqCst);
    setup.log_writer.mark_dirty();
    assert_eq!(setup.poll(1), []);
    assert!(setup.log_writer.may_act(Some(0), || setup.at(Stabilisation::First)));
    assert!(!setup.log_writer.may_act(Some(0), || setup.at(Stabilisation::Second)));
    assert!(!setup.log_writer.may_act(Some(0), || setup.at(Stabilisation::Done)));
    setup.snapshot.stabilisation = Stabilisation::Second;
    setup.snapshot.now = setup.log_writer.wake_at().expect("a time");
    setup.log_writer.mark_dirty();
    assert!(matches!(setup.poll(9)[..], [Outcome::Reclaimed(token), ..] if token.random == 42));
    setup.check_operations(&["reassert 2 from 1", "claim 42 for 100 s", "reassert 2 from 1"]);
    // A confirmed owner needs no snapshot, which takes a lock.
    assert!(setup.log_writer.may_act(Some(0), || panic!("it is sure")));
}

#[tokio::test]
async fn a_failover_is_observed_during_an_operation() {
    let mut setup = Setup::new().await;
    setup.push(1, 1);
    assert_eq!(setup.poll(0), []);
    assert!(setup.log_writer.is_busy());
    setup.log_writer.observe(0, || panic!("nothing has changed"));
    let snapshot = LeaseSnapshot { failover_generation: 1, ..setup.snapshot };
    setup.log_writer.observe(1, || snapshot);
    assert!(!setup.log_writer.may_act(Some(0), || setup.at(Stabilisation::Second)));
    setup.log_writer.observe(1, || panic!("nothing has changed since"));
}
