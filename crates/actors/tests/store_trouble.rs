//! A store that is unreachable, slow or loses data, and an owner that was deposed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{FLOOD, STEPS, Script, World, messages, next, receive_all, text, wait_until};
use actors::{Answer, Refusal, ReplyEvent, Settings};
use protocol::SessionId;
use store::{
    Appended, Batch, Error, Expected, Incarnation, Lease, Memory, Owner, Record, Renewed, Store,
    StoreLayer, Token,
};

/// A store that fails and delays operations on request.
#[derive(Default)]
struct FaultyStore {
    memory: Arc<Memory>,
    /// The number of creations that fail.
    creations: AtomicUsize,
    /// The number of appends that are done and reported as failed.
    appends: AtomicUsize,
    /// Whether lease renewals fail.
    leaseless: AtomicBool,
    /// The delay of each operation.
    delay: Duration,
}

fn unavailable() -> Error {
    Error::Unavailable(io::Error::from(io::ErrorKind::TimedOut))
}

fn take_one(count: &AtomicUsize) -> bool {
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
}

#[async_trait::async_trait]
impl StoreLayer for FaultyStore {
    fn inner(&self) -> Result<Arc<dyn Store>, Error> {
        Ok(Arc::clone(&self.memory) as _)
    }
    async fn create(&self, s: &SessionId, r: Record, t: Duration) -> Result<(), Error> {
        tokio::time::sleep(self.delay).await;
        if take_one(&self.creations) {
            return Err(unavailable());
        }
        self.memory.create(s, r, t).await
    }
    async fn append(&self, batch: Batch) -> Result<Appended, Error> {
        tokio::time::sleep(self.delay).await;
        let appended = self.memory.append(batch).await;
        if take_one(&self.appends) { Err(unavailable()) } else { appended }
    }
    async fn end(&self, s: &SessionId, t: Token, d: Duration) -> Result<(), Error> {
        tokio::time::sleep(self.delay).await;
        self.memory.end(s, t, d).await
    }
    async fn renew(&self, l: Lease, t: Duration) -> Result<Renewed, Error> {
        if self.leaseless.load(Ordering::SeqCst) {
            return Err(unavailable());
        }
        self.memory.renew(l, t).await
    }
}

fn world(store: FaultyStore) -> (World, Arc<FaultyStore>) {
    let store = Arc::new(store);
    let shared: Arc<dyn Store> = Arc::clone(&store) as _;
    (World::on(Settings::default(), Script::default(), shared), store)
}

/// The numbers of the entries in the store's log.
async fn log(world: &World, session: &SessionId) -> Vec<u64> {
    let log = world.store.read_log(session).await.unwrap();
    log.into_iter().map(|(number, _)| number).collect()
}

#[actix_rt::test]
async fn a_duplex_session_counts_once_while_the_store_does_not_answer() {
    let (world, _) = world(FaultyStore { delay: Duration::from_secs(3_600), ..Default::default() });
    let limits = world.handle.limits();
    let entry = limits.count("acme", "sessions", 10);
    let pending = entry.take_pending(limits.now()).and_then(Result::ok).unwrap();
    let (handle, tenant) = (world.handle.clone(), Arc::clone(&world.tenant));
    let principal = world.principal.clone();
    let with_pending = Arc::strong_count(&entry);
    let connecting = actix_rt::spawn(async move {
        handle.connect_counted(&tenant, &principal, Some(pending)).await.map(drop)
    });
    wait_until(|| world.handle.sessions() == 1).await;
    wait_until(|| Arc::strong_count(&entry) == with_pending - 1).await;
    assert!(!connecting.is_finished());
    connecting.abort();
}

#[actix_rt::test]
async fn a_session_waits_for_a_store_that_is_slow_or_unreachable_for_a_moment() {
    tokio::time::pause();
    let delay = Duration::from_millis(20);
    let (world, _) = world(FaultyStore { creations: 3.into(), delay, ..FaultyStore::default() });
    let caller = world.session().await;
    world.check_call(&caller, 1).await;
    receive_all(world.handle.delete(&caller)).await;
    world.wait_until_empty().await;
}

#[actix_rt::test]
async fn a_session_that_cannot_be_recorded_is_refused_and_leaves_nothing() {
    tokio::time::pause();
    let (world, _) = world(FaultyStore { creations: 1_000_000.into(), ..FaultyStore::default() });
    let mut opened = world.initialize().await.unwrap();
    let events =
        tokio::time::timeout(Duration::from_secs(60), opened.replies.next()).await.unwrap();
    assert!(
        matches!(&events, Some(ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable)))),
        "{events:?}"
    );
    world.wait_until_empty().await;
}

#[actix_rt::test]
async fn a_client_that_leaves_while_the_session_is_recorded_leaves_nothing_unended() {
    tokio::time::pause();
    let delay = Duration::from_millis(100);
    let (world, store) = world(FaultyStore { delay, ..FaultyStore::default() });
    let opened = world.initialize().await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let session = opened.session.clone();
    drop(opened);
    world.handle.stop(Duration::from_secs(60)).await;
    assert_eq!(world.handle.sessions(), 0);
    let record = store.memory.read(&session).await.unwrap();
    assert!(record.is_none_or(|record| record.status == store::RecordStatus::Ended));
}

#[actix_rt::test]
async fn a_stream_survives_appends_of_unknown_outcome_without_loss_or_double() {
    tokio::time::pause();
    let delay = Duration::from_millis(1);
    let (world, store) = world(FaultyStore { delay, ..FaultyStore::default() });
    let caller = world.session().await;
    store.appends.store(3, Ordering::SeqCst);
    let events = receive_all(world.call(&caller, 1, "flood")).await;
    assert_eq!(messages(&events).len(), FLOOD + 1);
    let numbers = log(&world, &caller.session).await;
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(numbers.len(), FLOOD + 3, "the stream's opening, its events and its end");
}

#[actix_rt::test]
async fn a_deposed_owner_stops_and_cuts_its_streams() {
    let (world, store) = world(FaultyStore::default());
    let caller = world.session().await;
    let held = store.memory.read(&caller.session).await.unwrap().unwrap().owner;
    let new = Owner { token: held.token.next(7), node: Incarnation(7) };
    let expected = Expected::Token(held.token);
    store
        .memory
        .claim(&caller.session, expected, new, None, Duration::from_secs(60))
        .await
        .unwrap();
    let events = receive_all(world.call(&caller, 1, "flood")).await;
    // A cluster of one has no other node, so the session of another owner counts as unknown.
    let refused = [Answer::Refused(Refusal::UnknownSession)].map(ReplyEvent::Answer);
    assert_eq!(format!("{events:?}"), format!("{refused:?}"));
    world.wait_until_empty().await;
    let record = store.memory.read(&caller.session).await.unwrap().unwrap();
    assert_eq!((record.owner, record.status), (new, store::RecordStatus::Owned));
}

/// A node with a short lease.
async fn joined(settings: Settings, store: Arc<dyn Store>) -> World {
    let peers = cluster::Settings {
        listen: "127.0.0.1:0".into(),
        secret: "no secret, only a test of these nodes".into(),
        lease_ms: 400,
        renew_ms: 50,
        margin_ms: 100,
        ..cluster::Settings::default()
    };
    World::joined(settings, store, peers).await
}

/// The return of the lease is not certain, so the wait of a client is bounded.
#[actix_rt::test]
async fn a_call_at_a_node_whose_lease_stays_lost_is_held_for_as_long_as_any_other() {
    let store = Arc::new(FaultyStore::default());
    let settings = Settings { hold_ms: 1, store_wait_secs: 0, ..Settings::default() };
    let world = joined(settings, store.clone()).await;
    let joined = world.handle.cluster().clone();
    let caller = world.session().await;
    store.leaseless.store(true, Ordering::SeqCst);
    wait_until(|| !joined.may_act()).await;
    // A new session waits for the lease as long as for the store (`store_wait_secs`).
    assert_eq!(world.initialize().await.err(), Some(Refusal::Unavailable));
    let events = receive_all(world.call(&caller, 1, "echo")).await;
    let [ReplyEvent::Answer(Answer::Json(word))] = &events[..] else { panic!("{events:?}") };
    let word = String::from_utf8_lossy(word);
    assert!(word.contains("could not be reached"), "{word}");
    assert_eq!(world.script.requests.load(Ordering::SeqCst), 0);

    store.leaseless.store(false, Ordering::SeqCst);
    wait_until(|| joined.may_act()).await;
    world.check_call(&caller, 2).await;
}

/// No other node claims the session, but its owner cannot observe this without a lease.
#[actix_rt::test]
async fn a_call_in_flight_at_a_node_whose_lease_stays_lost_ends_after_the_hold_time() {
    let store = Arc::new(FaultyStore::default());
    let settings = Settings { hold_ms: 1_000, ..Settings::default() };
    let world = joined(settings, store.clone()).await;
    let joined = world.handle.cluster().clone();
    // For clients of this revision, an answer becomes a stream only after a delay.
    let (caller, other) = (world.session_in("2025-06-18").await, world.session().await);
    let mut streaming = world.call(&other, 1, "steps");
    let head = next(&mut streaming).await;
    assert!(matches!(head, Some(ReplyEvent::Open { .. })), "{head:?}");
    let waiting = world.call(&caller, 2, "later");
    world.wait_for_requests(2).await;
    store.leaseless.store(true, Ordering::SeqCst);
    wait_until(|| !joined.may_act()).await;

    let lost = Instant::now();
    let events = receive_all(waiting).await;
    let [ReplyEvent::Answer(Answer::Json(error))] = &events[..] else { panic!("{events:?}") };
    let error = text(error);
    assert!(error.contains(r#""id":2"#) && error.contains("-32000"), "{error}");
    assert!(error.contains("could not act on it for 1 s (sessions.hold_ms)"), "{error}");
    let took = lost.elapsed();
    // The node detects the loss when the next renewal fails.
    assert!((900..2_000).contains(&took.as_millis()), "{took:?}");

    // No call ran twice, and streams and session continue.
    store.leaseless.store(false, Ordering::SeqCst);
    wait_until(|| joined.may_act()).await;
    world.script.gate.notify_waiters();
    let events = receive_all(streaming).await;
    assert_eq!(messages(&events).len(), STEPS + 1, "{events:?}");
    assert_eq!(world.script.calls.load(Ordering::SeqCst), 2);
    world.check_call(&caller, 3).await;
}

#[actix_rt::test]
async fn a_node_whose_lease_is_lost_does_not_act_until_it_is_renewed() {
    let store = Arc::new(FaultyStore::default());
    let world = joined(Settings::default(), store.clone()).await;
    let joined = world.handle.cluster().clone();
    let caller = world.session().await;
    let before = store.memory.read(&caller.session).await.unwrap().unwrap().owner;
    store.leaseless.store(true, Ordering::SeqCst);
    wait_until(|| !joined.may_act()).await;
    let waiting = actix_rt::spawn(receive_all(world.call(&caller, 1, "echo")));
    let renewed = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished() && world.script.requests.load(Ordering::SeqCst) == 0);
        assert_eq!(world.handle.sessions(), 1);
        store.leaseless.store(false, Ordering::SeqCst);
    };
    // No client repeats an `initialize`, so the node holds it as well.
    let (opened, ()) = tokio::join!(world.initialize(), renewed);
    let events = receive_all(opened.unwrap().replies).await;
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Welcome(_))]), "{events:?}");
    // Other nodes may have read that the lease was lost, so the owner acts only under a new token.
    let events = waiting.await.unwrap();
    assert!(matches!(&events[..], [ReplyEvent::Answer(Answer::Json(_))]), "{events:?}");
    let now = store.memory.read(&caller.session).await.unwrap().unwrap().owner;
    assert_eq!((now.node, now.token.counter), (before.node, before.token.counter + 1));
    world.check_call(&caller, 2).await;
}

#[actix_rt::test]
async fn a_duplex_session_that_cannot_be_recorded_is_refused_before_its_id_is_sent() {
    tokio::time::pause();
    let (world, _) = world(FaultyStore { creations: 1_000_000.into(), ..FaultyStore::default() });
    let refused = world.handle.connect(&world.tenant, &world.principal).await.err();
    assert_eq!(refused, Some(Refusal::Unavailable));
    world.wait_until_empty().await;
}
