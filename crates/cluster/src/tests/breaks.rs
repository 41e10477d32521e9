//! What becomes of nodes whose links break, and of those that are killed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use store::{Lease, Memory, Presence, Store};
use tokio::time::sleep;

use super::between::Between;
use super::leases::{Away, node};
use super::support::{TestNode, call, own, settings, until};
use crate::{Cluster, SessionLocation, Settings, Versions};

/// Renews as often as nodes do by default.
fn unhurried() -> Settings {
    Settings { renew_ms: Settings::default().renew_ms, ..settings() }
}

/// Waits until all are linked both ways, and every lease tells of it.
async fn all_linked(store: &Memory, nodes: &[&TestNode]) {
    let ids: Vec<_> = nodes.iter().map(|node| node.cluster.incarnation()).collect();
    let both_ways = |node: &&TestNode| {
        let others = ids.iter().filter(|id| **id != node.cluster.incarnation());
        others.into_iter().all(|id| node.cluster.node.peers.links_to(*id) == 2)
    };
    until("all are linked", || nodes.iter().all(both_ways)).await;
    let started = Instant::now();
    loop {
        let leases = store.nodes().await.unwrap();
        let told = |lease: &&Lease| lease.linked.len() + 1 == ids.len();
        if leases.iter().filter(told).count() == ids.len() {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "not told: {leases:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Two nodes that reach each other only through what is between them, and are linked.
async fn two_apart(settings: Settings) -> (Arc<Memory>, [TestNode; 2], [Between; 2]) {
    let store = Arc::new(Memory::default());
    let (one, to_one) = TestNode::behind(settings.clone(), store.clone()).await;
    let (other, to_other) = TestNode::behind(settings, store.clone()).await;
    all_linked(&store, &[&one, &other]).await;
    (store, [one, other], [to_one, to_other])
}

async fn both_live(store: &Memory, nodes: &[TestNode; 2]) {
    for node in nodes {
        let presence = store.presence(node.cluster.incarnation()).await.unwrap();
        assert!(matches!(presence, Presence::Live(_)), "{presence:?}");
    }
    let [one, other] = nodes;
    until("both act", || one.cluster.may_act() && other.cluster.may_act()).await;
    assert_eq!(one.cluster.valid_lease_generation(), Some(0));
    assert_eq!(other.cluster.valid_lease_generation(), Some(0));
    all_linked(store, &[one, other]).await;
    let peer = one.peer(store, other).await;
    assert_eq!(call(&peer, "echo hello").await, [Ok("hello".to_owned())]);
}

#[tokio::test]
async fn nodes_are_linked_before_they_call_each_other() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start_with(unhurried(), store.clone()).await;
    let other = TestNode::start_with(unhurried(), store.clone()).await;
    let third = TestNode::start_with(unhurried(), store.clone()).await;
    all_linked(&store, &[&one, &other, &third]).await;
}

#[tokio::test]
async fn a_process_that_is_killed_without_ever_being_called_is_ownerless_in_a_moment() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start_with(unhurried(), store.clone()).await;
    let third = TestNode::start_with(unhurried(), store.clone()).await;
    let mut other = TestNode::start_with(unhurried(), store.clone()).await;
    all_linked(&store, &[&one, &other, &third]).await;
    own(&store, "a-session", other.cluster.incarnation()).await;

    let killed = Instant::now();
    other.kill();
    while !matches!(one.find("a-session").await, SessionLocation::Ownerless(..)) {
        assert!(killed.elapsed() < Duration::from_secs(2), "still not ownerless");
        sleep(Duration::from_millis(5)).await;
    }
    // About 210 ms; the rest is for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    until("the living act", || one.cluster.may_act() && third.cluster.may_act()).await;
}

/// Each lists a link to the other, which is no sign of life of either.
#[tokio::test]
async fn two_processes_that_are_killed_at_once_are_ownerless_in_a_moment() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start_with(unhurried(), store.clone()).await;
    let mut others = [
        TestNode::start_with(unhurried(), store.clone()).await,
        TestNode::start_with(unhurried(), store.clone()).await,
    ];
    all_linked(&store, &[&one, &others[0], &others[1]]).await;
    own(&store, "a-session", others[0].cluster.incarnation()).await;
    own(&store, "b-session", others[1].cluster.incarnation()).await;

    let killed = Instant::now();
    others.iter_mut().for_each(TestNode::kill);
    for session in ["a-session", "b-session"] {
        while !matches!(one.find(session).await, SessionLocation::Ownerless(..)) {
            assert!(killed.elapsed() < Duration::from_secs(2), "{session} is still not ownerless");
            sleep(Duration::from_millis(5)).await;
        }
    }
    // About 270 ms; the rest is for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    until("the living acts", || one.cluster.may_act()).await;
}

#[tokio::test]
async fn a_firewall_that_resets_every_link_between_two_nodes_kills_neither() {
    let (store, nodes, [to_one, to_other]) = two_apart(unhurried()).await;
    for between in [&to_one, &to_other] {
        between.cut();
    }
    // As long as a firewall is loaded anew, and longer than a killed process is looked at.
    sleep(Duration::from_millis(2_000)).await;
    for between in [&to_one, &to_other] {
        between.mend();
    }
    both_live(&store, &nodes).await;
}

#[tokio::test]
async fn a_node_that_does_not_hear_that_its_links_were_reset_is_not_taken_for_dead() {
    let (store, nodes, [to_one, to_other]) = two_apart(unhurried()).await;
    // The one calls through `to_other`, and is called through `to_one`.
    to_other.cut_near();
    to_one.cut_far();
    sleep(Duration::from_millis(2_000)).await;
    for between in [&to_one, &to_other] {
        between.mend();
    }
    both_live(&store, &nodes).await;
}

/// Two linked nodes. The second reaches the store in its own way, so that it can be cut off.
async fn two_linked() -> (Arc<Memory>, [TestNode; 2], [Between; 2], Arc<Away>) {
    let store = Arc::new(Memory::default());
    let away = Away::from(&store);
    let (one, to_one) = TestNode::behind(unhurried(), store.clone()).await;
    let (other, to_other) = TestNode::behind(unhurried(), away.clone()).await;
    all_linked(&store, &[&one, &other]).await;
    (store, [one, other], [to_one, to_other], away)
}

/// Breaks the links between two nodes, and leads the first one's connections to the second
/// elsewhere, for longer than it takes to find a replaced process dead. Is the second node
/// not marked dead?
async fn survives_being_led_to(
    elsewhere: &str,
    store: &Memory,
    node: &TestNode,
    [to_one, to_node]: &[Between; 2],
) -> bool {
    to_one.cut();
    to_node.cut();
    sleep(Duration::from_millis(100)).await;
    to_node.lead_to(elsewhere.parse().unwrap());
    to_node.mend();
    sleep(Duration::from_millis(2_500)).await;
    let presence = store.presence(node.cluster.incarnation()).await.unwrap();
    matches!(presence, Presence::Live(_))
}

#[tokio::test]
async fn a_connection_that_is_led_back_to_its_caller_proves_nothing() {
    let (store, [one, other], between, away) = two_linked().await;
    // Its lease stands still, as that of a node that is gone.
    away.away.store(true, Ordering::SeqCst);
    let itself = &one.cluster.node.settings.listen;
    assert!(survives_being_led_to(itself, &store, &other, &between).await);
}

#[tokio::test]
async fn a_connection_that_is_led_to_a_node_of_another_address_proves_nothing() {
    let (store, [_one, other], between, away) = two_linked().await;
    away.away.store(true, Ordering::SeqCst);
    // It knows the secret and is a member of another cluster.
    let stranger = TestNode::start(&Arc::new(Memory::default())).await;
    assert!(survives_being_led_to(stranger.cluster.address(), &store, &other, &between).await);
}

#[tokio::test]
async fn a_node_is_not_dead_whose_lease_is_renewed_whoever_answers_at_its_address() {
    let (store, [_one, other], between, _) = two_linked().await;
    // Of another cluster's records, so that it is let in.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let twin =
        Settings { listen: free.to_string(), advertise: between[1].address.clone(), ..unhurried() };
    let twin = TestNode::start_with(twin, Arc::new(Memory::default())).await;
    assert_eq!(twin.cluster.address(), other.cluster.address());
    assert!(survives_being_led_to(&free.to_string(), &store, &other, &between).await);
    assert!(other.cluster.may_act());
}

#[tokio::test]
async fn a_node_does_not_start_at_the_address_of_one_that_lives() {
    let store = Arc::new(Memory::default());
    let advertised = Settings { advertise: "a-node:7070".into(), ..settings() };
    let mut first = TestNode::start_with(advertised.clone(), store.clone()).await;
    let join = || Cluster::join(advertised.clone(), store.clone(), Versions::UNANNOUNCED);
    let refused = join().await.err().expect("it should be refused").to_string();
    assert!(refused.contains("cluster.advertise") && refused.contains("a-node:7070"), "{refused}");
    assert_eq!(store.nodes().await.unwrap().len(), 1, "it took no lease");
    assert!(first.cluster.may_act());
    first.kill();
    let second = join().await.unwrap();
    assert!(second.cluster().may_act());
}

#[tokio::test]
async fn a_node_that_lost_a_link_does_nothing_until_it_renewed() {
    let store = Arc::new(Away::default());
    let quick = Settings { renew_ms: 20, ..settings() };
    let (one, _) = node(&store, quick.clone()).await;
    let mut other = TestNode::start_with(quick, store.clone()).await;
    until("they are linked", || one.node.peers.is_linked(other.cluster.incarnation())).await;
    let mut changes = one.changes();
    store.away.store(true, Ordering::SeqCst);
    other.kill();
    until("it fears to be taken for dead", || !one.may_act()).await;

    changes.borrow_and_update();
    store.away.store(false, Ordering::SeqCst);
    changes.changed().await.unwrap();
    // It was not away for long enough for others to see it gone.
    assert_eq!(one.valid_lease_generation(), Some(0));
}

#[tokio::test]
async fn whoever_is_willing_takes_sessions_and_has_few() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start(&store).await;
    assert!(one.cluster.willing().is_none());
    let (busy, idle) = (TestNode::start(&store).await, TestNode::start(&store).await);
    busy.cluster.load().set(7);
    idle.cluster.load().set(3);
    let willing = || one.cluster.willing().map(|peer| peer.incarnation());
    until("the idle one", || willing() == Some(idle.cluster.incarnation())).await;
    idle.cluster.set_draining(true);
    until("the busy one", || willing() == Some(busy.cluster.incarnation())).await;
    busy.cluster.set_draining(true);
    until("nobody", || willing().is_none()).await;
}
