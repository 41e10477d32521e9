//! The replies to clients if nodes cannot reach each other, have no free slot, or exceed a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::support::lossy_store::LossyStore;
use crate::support::nodes::{Common, Node};
use crate::support::{FLOOD, MEDIUM_BYTES, World, messages, next, receive_all, text, wait_until};
use actors::{Answer, Caller, Care, ReplyEvent, ReplyStream, Settings};
use bytes::Bytes;
use cluster::{CallError, Cluster, PeerCallHandler, Replies, Versions};
use conversation::Rerun;
use protocol::SessionId;
use store::{Digest, Memory, Owner, Presence, Record, RecordStatus, State, Store, Token};

/// Three nodes of which the first two cannot reach each other.
async fn two_apart_and_one_between(settings: Settings) -> [Node; 3] {
    let nodes = Common { settings, cuttable: true, ..Common::default() }.nodes().await;
    let [one, other, third] = &nodes;
    let (first, second) = (one.cluster.incarnation(), other.cluster.incarnation());
    one.between.as_ref().unwrap().cut(second);
    other.between.as_ref().unwrap().cut(first);
    let announced = |node: &Node, linked: &[store::Incarnation]| {
        let leases = node.cluster.nodes();
        let lease = leases.iter().find(|lease| lease.incarnation == node.cluster.incarnation());
        lease.is_some_and(|lease| lease.linked == linked)
    };
    let between = third.cluster.incarnation();
    wait_until(|| announced(one, &[between]) && announced(other, &[between])).await;
    nodes
}

async fn opened(replies: &mut ReplyStream) {
    let events = next(replies).await;
    assert!(matches!(events, Some(ReplyEvent::Open { .. })), "{events:?}");
}

fn error_of(events: &[ReplyEvent]) -> String {
    let [ReplyEvent::Answer(Answer::Json(json))] = events else { panic!("{events:?}") };
    let json = text(json);
    assert!(json.contains(r#""error""#), "{json}");
    json
}

#[actix_rt::test]
async fn a_call_reaches_its_session_through_a_third_node() {
    let [owner, ingress, third] = two_apart_and_one_between(Settings::default()).await;
    let caller = owner.session_of("2025-11-25").await;
    for id in 1..20 {
        ingress.check_call(&caller, id).await;
    }
    // A session of a node that both can reach needs no relay.
    let near = third.session_of("2025-11-25").await;
    ingress.check_call(&near, 20).await;
    assert_eq!([&owner, &ingress, &third].map(|node| node.handle.sessions()), [1, 0, 1]);
    let lives = |node: &Node| node.cluster.may_act();
    assert!(lives(&owner) && lives(&ingress) && lives(&third));
}

#[actix_rt::test]
async fn a_relayed_stream_is_as_slow_as_its_reader_and_loses_no_event() {
    let [owner, ingress, _third] = two_apart_and_one_between(Settings::default()).await;
    let caller = owner.session_of("2025-11-25").await;
    let mut slow = ingress.call(&caller, 1, "flood");
    opened(&mut slow).await;
    ingress.check_call(&caller, 2).await;
    let events = messages(&receive_all(slow).await);
    let mut ids: Vec<_> = events.iter().map(|(id, _)| id.clone().unwrap()).collect();
    ids.dedup();
    assert_eq!((events.len(), ids.len()), (FLOOD + 1, FLOOD + 1));
    assert!(events.last().unwrap().1.contains("done"));
    let large = receive_all(ingress.call(&caller, 3, "medium")).await;
    let [ReplyEvent::Answer(Answer::Json(json))] = &large[..] else { panic!("{large:?}") };
    assert!(json.len() > MEDIUM_BYTES);
}

#[actix_rt::test]
async fn an_owner_is_notified_through_a_relay_that_a_client_has_left() {
    let mut settings = Settings::default();
    settings.session.idle_secs = 1;
    let [owner, ingress, _third] = two_apart_and_one_between(settings).await;
    let caller = owner.session_of("2025-11-25").await;
    let mut replies = ingress.handle.listen(&caller, None);
    opened(&mut replies).await;
    // A session with a reader is not idle.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(owner.handle.sessions(), 1);
    drop(replies);
    wait_until(|| owner.handle.sessions() == 0).await;
}

#[actix_rt::test]
async fn a_relayed_stream_continues_when_its_owner_is_killed() {
    let [mut owner, ingress, third] = two_apart_and_one_between(Settings::default()).await;
    let caller = owner.session_of("2025-11-25").await;
    let mut replies = ingress.call(&caller, 1, "flood");
    let mut events = Vec::new();
    while messages(&events).len() < 10 {
        events.push(next(&mut replies).await.expect("the stream should go on"));
    }
    // All events are in the log.
    ingress.check_call(&caller, 2).await;
    owner.kill();
    events.extend(receive_all(replies).await);
    let events = messages(&events);
    let mut ids: Vec<_> = events.iter().map(|(id, _)| id.clone().unwrap()).collect();
    ids.dedup();
    assert_eq!((events.len(), ids.len()), (FLOOD + 1, FLOOD + 1));
    assert_eq!(ingress.handle.sessions() + third.handle.sessions(), 1);
}

#[actix_rt::test]
async fn a_session_whose_owner_died_is_claimed_by_a_node_with_a_free_slot() {
    let settings = Settings { sessions_max: 2, ..Settings::default() };
    // A call that is sent before the death is detected may have reached the dead node.
    let care = Care { rerun: Rerun::Always, ..Care::default() };
    let [mut owner, full, empty] = Common { settings, care, ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    for _ in 0..2 {
        full.session_of("2025-11-25").await;
    }
    owner.kill();
    full.check_call(&caller, 1).await;
    assert_eq!((full.handle.sessions(), empty.handle.sessions()), (2, 1));
}

/// The attempts of a call back off: one is made 0.77 s after the loss of the owner, and the next
/// 0.5 s later.
#[actix_rt::test]
async fn a_call_that_waits_for_an_owner_continues_as_soon_as_that_is_found_dead() {
    let store = Arc::new(LossyStore::default());
    let care = Care { rerun: Rerun::Always, ..Care::default() };
    let common = Common { store: Some(store.clone()), care, ..Common::default() };
    let [mut owner, ingress] = common.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let dead = owner.cluster.incarnation();
    store.refuses_marks.store(true, Ordering::SeqCst);
    owner.kill();
    let found_dead = async {
        tokio::time::sleep(Duration::from_millis(870)).await;
        store.refuses_marks.store(false, Ordering::SeqCst);
        while !matches!(store.presence(dead).await.unwrap(), Presence::Dead { .. }) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Instant::now()
    };
    let answered = async {
        ingress.check_call(&caller, 1).await;
        Instant::now()
    };
    let (found_dead, answered) = tokio::join!(found_dead, answered);
    let later = answered.saturating_duration_since(found_dead);
    assert!(later < Duration::from_millis(150), "{later:?}");
}

#[actix_rt::test]
async fn without_a_free_slot_at_any_node_the_error_names_the_bound_after_the_hold_time() {
    let settings = Settings { sessions_max: 1, hold_ms: 2_000, ..Settings::default() };
    let [mut owner, full, other] = Common { settings, ..Common::default() }.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    for node in [&full, &other] {
        node.session_of("2025-11-25").await;
    }
    owner.kill();
    let began = Instant::now();
    let error = error_of(&receive_all(full.call(&caller, 1, "echo")).await);
    assert!(error.contains("sessions.sessions_max"), "{error}");
    let took = began.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(4)).contains(&took), "{took:?}");
    assert_eq!((full.handle.sessions(), other.handle.sessions()), (1, 1));
}

#[actix_rt::test]
async fn a_result_above_the_bound_of_links_is_one_error_and_the_tool_runs_once() {
    let bound = Some(MEDIUM_BYTES - 1);
    let common = Common { message_bytes_max: bound, ..Common::default() };
    let [owner, ingress] = common.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let error = error_of(&receive_all(ingress.call(&caller, 1, "medium")).await);
    assert!(error.contains("cluster.message_bytes_max is 299999 bytes"), "{error}");
    assert_eq!(owner.script.calls.load(Ordering::SeqCst), 1);
    ingress.check_call(&caller, 2).await;
}

/// A node that opens each requested stream, and is then lost.
#[derive(Default)]
struct Unsteady {
    asked: AtomicUsize,
}

struct OnceOpen(bool);

/// A peer's reply: the head of a stream that can be resumed.
const OPEN: [u8; 14] = [2, 1, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 10, 1];
/// A peer's reply: the session that it was to claim is there.
const THERE: [u8; 3] = [2, 0, 4];
/// The last byte of a call that only requests a claim.
const ASKS: u8 = 3;

impl PeerCallHandler for Unsteady {
    fn handle_call(&self, call: Bytes) -> Option<Box<dyn Replies>> {
        if call.last() == Some(&ASKS) {
            return Some(Box::new(Once(Some(Ok(THERE[..].into())))));
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        Some(Box::new(OnceOpen(false)))
    }
}

impl Replies for OnceOpen {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        let lost = std::mem::replace(&mut self.0, true);
        Poll::Ready(Some(if lost { Err(CallError::Lost) } else { Ok(OPEN[..].into()) }))
    }
}

/// One reply.
struct Once(Option<Result<Bytes, CallError>>);

impl Replies for Once {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        Poll::Ready(self.0.take())
    }

    fn is_over(&self) -> bool {
        self.0.is_none()
    }
}

/// A node that fails every call.
#[derive(Default)]
struct AlwaysLost {
    asked: AtomicUsize,
}

impl PeerCallHandler for AlwaysLost {
    fn handle_call(&self, _: Bytes) -> Option<Box<dyn Replies>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Some(Box::new(Once(Some(Err(CallError::Lost)))))
    }
}

/// The call must not run twice, and had not started there.
#[actix_rt::test]
async fn a_call_outlives_the_node_that_was_requested_to_claim_its_session() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let settings = Settings { sessions_max: 1, ..Settings::default() };
    let common = Common { settings, store: Some(Arc::clone(&store)), ..Common::default() };
    let [mut owner, full] = common.nodes().await;
    let caller = owner.session_of("2025-11-25").await;
    let own = full.session_of("2025-11-25").await;
    let dead = owner.cluster.incarnation();
    owner.kill();
    while !matches!(store.presence(dead).await.unwrap(), Presence::Dead { .. }) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let lost = Arc::new(AlwaysLost::default());
    let _lost =
        Cluster::join(peers(), store, Versions::UNANNOUNCED).await.unwrap().serve(lost.clone());
    let call = actix_rt::spawn(receive_all(full.call(&caller, 1, "echo")));
    wait_until(|| lost.asked.load(Ordering::SeqCst) >= 2).await;
    // Now a slot is free.
    receive_all(full.handle.delete(&own)).await;
    let events = call.await.unwrap();
    let [ReplyEvent::Answer(Answer::Json(json))] = &events[..] else { panic!("{events:?}") };
    assert!(text(json).contains(r#""ok":true"#), "{events:?}");
}

fn peers() -> cluster::Settings {
    cluster::Settings {
        listen: "127.0.0.1:0".into(),
        secret: "no secret, only a test of these nodes".into(),
        ..cluster::Settings::default()
    }
}

/// Creates the record of another node's session.
async fn recorded(store: &dyn Store, world: &World, owner: &Cluster) -> Caller {
    let session = SessionId::parse("a-session").unwrap();
    let record = Record {
        owner: Owner { token: Token::first(1), node: owner.incarnation() },
        former: Vec::new(),
        tenant: "acme".into(),
        principal: Digest(world.principal.digest()),
        revision: "2025-11-25".into(),
        initialize: [].into(),
        state: State::default(),
        status: RecordStatus::Owned,
    };
    store.create(&session, record, Duration::from_secs(60)).await.unwrap();
    world.caller(&session)
}

#[actix_rt::test]
async fn calls_to_an_owner_that_only_opens_streams_back_off_and_then_stop() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let unsteady = Arc::new(Unsteady::default());
    let owner = Cluster::join(peers(), Arc::clone(&store), Versions::UNANNOUNCED)
        .await
        .unwrap()
        .serve(unsteady.clone());
    let settings = Settings { hold_ms: 1_500, ..Settings::default() };
    let world = World::joined(settings, Arc::clone(&store), peers()).await;
    let caller = recorded(&*store, &world, &owner).await;
    let began = Instant::now();
    let events = receive_all(world.handle.listen(&caller, None)).await;
    assert!(matches!(events[..], [ReplyEvent::Open { .. }, ReplyEvent::Abort]), "{events:?}");
    let took = began.elapsed();
    assert!((Duration::from_millis(1_400)..Duration::from_secs(4)).contains(&took), "{took:?}");
    let asked = unsteady.asked.load(Ordering::SeqCst);
    assert!((3..=12).contains(&asked), "asked {asked} times");
}
