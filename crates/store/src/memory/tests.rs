//! Runs the contract on the memory store, and checks that it frees its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::contract::World;

/// A memory store whose clock the test advances.
struct Bench {
    store: Memory,
    clock: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(AtomicU64::new(1));
        let hand = Arc::clone(&clock);
        let store = Memory::with_clock(move || Duration::from_millis(hand.load(Ordering::SeqCst)));
        Self { store, clock }
    }
}

#[async_trait::async_trait]
impl World for Bench {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn pass(&self, time: Duration) {
        self.clock.fetch_add(millis(time), Ordering::SeqCst);
    }
}

crate::contract!(Bench::new());

fn record(tenant: &str) -> Record {
    Record {
        owner: Owner { token: Token::first(1), node: Incarnation(1) },
        former: Vec::new(),
        tenant: tenant.into(),
        principal: crate::Digest([0; 32]),
        revision: "2025-11-25".into(),
        initialize: (*b"{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{}}").into(),
        state: State::default(),
        status: crate::RecordStatus::Owned,
    }
}

fn session(number: usize) -> SessionId {
    SessionId::parse(&format!("session-{number}")).expect("a valid id")
}

fn batch(session: &SessionId, ttl: Duration) -> Batch {
    let token = Token::first(1);
    let entries = vec![Bytes::from_static(b"entry")];
    Batch { session: session.clone(), token, first: 1, floor: 1, entries, ttl, prolongs: true }
}

/// The numbers of sessions and of scheduled checks in all shards.
fn size(store: &Memory) -> (usize, usize) {
    store
        .shards
        .iter()
        .map(|shard| lock(shard).size())
        .fold((0, 0), |sum, shard| (sum.0 + shard.0, sum.1 + shard.1))
}

const TTL: Duration = Duration::from_secs(60);

/// Creates sessions that no owner prolongs.
async fn abandon(bench: &Bench, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let session = session(number);
        bench.store.create(&session, record("demo"), TTL).await.expect("made");
        bench.store.append(batch(&session, TTL)).await.expect("taken");
    }
}

#[tokio::test]
async fn ten_thousand_abandoned_sessions_leave_nothing_behind() {
    let bench = Bench::new();
    abandon(&bench, 0..10_000).await;
    assert_eq!(size(&bench.store).0, 10_000);
    bench.pass(TTL).await;
    assert_eq!(bench.store.sweep().await.expect("swept"), 10_000);
    assert_eq!(size(&bench.store), (0, 0));
    for shard in &bench.store.shards {
        assert!(lock(shard).capacity() <= 128, "the table keeps its memory");
    }
}

#[tokio::test]
async fn new_sessions_remove_expired_ones() {
    let bench = Bench::new();
    for round in 0..5 {
        abandon(&bench, round * 2_000..(round + 1) * 2_000).await;
        bench.pass(TTL).await;
    }
    assert!(size(&bench.store).0 <= 2_000, "{:?}", size(&bench.store));
}

#[tokio::test]
async fn ended_sessions_leave_nothing_behind_but_short_lived_tombstones() {
    let bench = Bench::new();
    abandon(&bench, 0..1_000).await;
    for number in 0..1_000 {
        let (session, ttl) = (session(number), Duration::from_secs(10));
        bench.store.end(&session, Token::first(1), ttl).await.expect("ended");
    }
    assert_eq!(size(&bench.store), (1_000, 1_000));
    bench.pass(Duration::from_secs(10)).await;
    bench.store.sweep().await.expect("swept");
    assert_eq!(size(&bench.store), (0, 0));
}

#[tokio::test]
async fn a_flood_of_sessions_that_end_leaves_a_bounded_number_of_tombstones() {
    let bench = Bench::new();
    let bound = Memory::TOMBSTONES_MAX;
    let flood = 0..bound + bound / 2;
    for first in flood.clone().step_by(1_000) {
        let numbers = first..(first + 1_000).min(flood.end);
        abandon(&bench, numbers.clone()).await;
        for number in numbers {
            let (session, ttl) = (session(number), Duration::from_secs(60));
            bench.store.end(&session, Token::first(1), ttl).await.expect("ended");
        }
    }
    assert_eq!(size(&bench.store), (bound, bound));
    let newest = session(flood.end - 1);
    let record = bench.store.read(&newest).await.expect("read").expect("a tombstone");
    assert_eq!(record.status, crate::RecordStatus::Ended);
    assert!(bench.store.read(&session(0)).await.expect("read").is_none(), "the oldest is dropped");
}

#[tokio::test]
async fn a_session_in_use_survives_every_check_and_has_one_scheduled_check() {
    let bench = Bench::new();
    abandon(&bench, 0..1).await;
    for _ in 0..100 {
        bench.pass(TTL / 2).await;
        bench.store.append(batch(&session(0), TTL)).await.expect("taken");
        bench.store.sweep().await.expect("swept");
        assert_eq!(size(&bench.store), (1, 1));
    }
}

#[tokio::test]
async fn an_expired_session_is_absent_even_before_it_is_forgotten() {
    let bench = Bench::new();
    abandon(&bench, 0..1_000).await;
    bench.pass(TTL).await;
    assert_eq!(size(&bench.store).0, 1_000);
    for number in (0..1_000).rev() {
        assert_eq!(bench.store.read(&session(number)).await.expect("read"), None);
        let refused = bench.store.append(batch(&session(number), TTL)).await;
        assert!(matches!(refused, Err(Error::Missing)), "{refused:?}");
    }
}

#[tokio::test]
async fn a_sweep_is_bounded() {
    let bench = Bench::new();
    let shards = u32::try_from(SHARDS).expect("few");
    abandon(&bench, 0..40_000).await;
    bench.pass(TTL).await;
    let mut sweeps = 0;
    while bench.store.sweep().await.expect("swept") > 0 {
        sweeps += 1;
    }
    assert!(sweeps >= 40_000 / (CHECKS_PER_SWEEP as u32 * shards), "{sweeps}");
    assert_eq!(size(&bench.store).0, 0);
}

#[tokio::test]
async fn an_appended_payload_is_not_copied() {
    let store = Memory::default();
    store.create(&session(0), record("demo"), TTL).await.expect("made");
    let payload = Bytes::from(vec![b'x'; 4_096]);
    let batch = Batch { entries: vec![payload.clone()], ..batch(&session(0), TTL) };
    store.append(batch).await.expect("taken");
    let log = store.read_log(&session(0)).await.expect("read");
    assert_eq!(log[0].1.as_ptr(), payload.as_ptr());
}

#[tokio::test]
async fn long_fields_of_a_record_are_shared_with_its_owner() {
    let store = Memory::default();
    let record = record("demo");
    store.create(&session(0), record.clone(), TTL).await.expect("made");
    let read = store.read(&session(0)).await.expect("read").expect("there");
    assert!(Arc::ptr_eq(&read.initialize, &record.initialize));
}

#[test]
fn claims_from_many_threads_have_one_winner() {
    let store = Memory::default();
    for number in 0..100 {
        let id = session(number);
        ready(store.create(&id, record("demo"), TTL)).expect("made");
        let claim = |random| {
            let expected = Expected::Token(Token::first(1));
            let new = Owner { token: Token::first(1).next(random), node: Incarnation(random) };
            ready(store.claim(&id, expected, new, None, TTL)).is_ok()
        };
        let winners = std::thread::scope(|scope| {
            let threads = [1, 2, 3, 4].map(|random| scope.spawn(move || claim(random)));
            threads.into_iter().filter_map(|t| t.join().expect("no panic").then_some(())).count()
        });
        assert_eq!(winners, 1);
    }
}

/// The output of a future that is ready at its first poll.
fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(answer) => answer,
        std::task::Poll::Pending => panic!("the memory store waits for nothing"),
    }
}
