//! What becomes of nodes whose links break, and of those that are killed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use store::{Lease, Memory, Presence, Store};
use tokio::time::sleep;

use super::between::Between;
use super::leases::{Away, node};
use super::support::{TestNode, call, own, settings, until};
use crate::{Settings, Whereabouts};

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
    assert_eq!(one.cluster.right(), Some(0));
    assert_eq!(other.cluster.right(), Some(0));
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
    while !matches!(one.find("a-session").await, Whereabouts::Ownerless(..)) {
        assert!(killed.elapsed() < Duration::from_secs(2), "still not ownerless");
        sleep(Duration::from_millis(5)).await;
    }
    // About 210 ms; the rest is for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    until("the living act", || one.cluster.may_act() && third.cluster.may_act()).await;
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
    assert_eq!(one.right(), Some(0));
}

#[tokio::test]
async fn whoever_is_willing_takes_sessions_and_has_few() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start(&store).await;
    assert!(one.cluster.willing().is_none());
    let (busy, idle) = (TestNode::start(&store).await, TestNode::start(&store).await);
    busy.answers.load.store(7, Ordering::SeqCst);
    idle.answers.load.store(3, Ordering::SeqCst);
    let willing = || one.cluster.willing().map(|peer| peer.incarnation());
    until("the idle one", || willing() == Some(idle.cluster.incarnation())).await;
    idle.cluster.set_draining(true);
    until("the busy one", || willing() == Some(busy.cluster.incarnation())).await;
    busy.cluster.set_draining(true);
    until("nobody", || willing().is_none()).await;
}
