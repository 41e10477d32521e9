//! Nodes whose links break, and nodes that are killed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use store::{Lease, Memory, Presence, Store};
use tokio::time::sleep;

use super::leases::{FlakyStore, node};
use super::proxy::Proxy;
use super::support::{TestNode, call, create_session_at, free_address, settings, wait_until};
use crate::{Cluster, SessionLocation, Settings, Versions, metrics};

/// Settings with the default renewal interval.
fn default_timing() -> Settings {
    Settings { renew_ms: Settings::default().renew_ms, ..settings() }
}

/// Waits until all nodes are linked both ways and every lease lists the links.
async fn all_linked(store: &Memory, nodes: &[&TestNode]) {
    let ids: Vec<_> = nodes.iter().map(|node| node.cluster.incarnation()).collect();
    let both_ways = |node: &&TestNode| {
        let others = ids.iter().filter(|id| **id != node.cluster.incarnation());
        others.into_iter().all(|id| node.cluster.node.peers.links_to(*id) == 2)
    };
    wait_until("all are linked", || nodes.iter().all(both_ways)).await;
    let started = Instant::now();
    loop {
        let leases = store.nodes().await.unwrap();
        let is_announced = |lease: &&Lease| lease.linked.len() + 1 == ids.len();
        if leases.iter().filter(is_announced).count() == ids.len() {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(5), "links not listed: {leases:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Two linked nodes that reach each other only through proxies.
async fn two_behind_proxies(settings: Settings) -> (Arc<Memory>, [TestNode; 2], [Proxy; 2]) {
    let store = Arc::new(Memory::default());
    let (one, to_one) = TestNode::start_behind_proxy(settings.clone(), store.clone()).await;
    let (other, to_other) = TestNode::start_behind_proxy(settings, store.clone()).await;
    all_linked(&store, &[&one, &other]).await;
    (store, [one, other], [to_one, to_other])
}

async fn both_live(store: &Memory, nodes: &[TestNode; 2]) {
    for node in nodes {
        let presence = store.presence(node.cluster.incarnation()).await.unwrap();
        assert!(matches!(presence, Presence::Live(_)), "{presence:?}");
    }
    let [one, other] = nodes;
    wait_until("both act", || one.cluster.may_act() && other.cluster.may_act()).await;
    assert_eq!(one.cluster.valid_lease_generation(), Some(0));
    assert_eq!(other.cluster.valid_lease_generation(), Some(0));
    all_linked(store, &[one, other]).await;
    let peer = one.peer(store, other).await;
    assert_eq!(call(&peer, "echo hello").await, [Ok("hello".to_owned())]);
}

#[tokio::test]
async fn nodes_are_linked_before_they_call_each_other() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start_with(default_timing(), store.clone()).await;
    let other = TestNode::start_with(default_timing(), store.clone()).await;
    let third = TestNode::start_with(default_timing(), store.clone()).await;
    all_linked(&store, &[&one, &other, &third]).await;
}

#[tokio::test]
async fn sessions_of_a_killed_process_that_was_never_called_become_ownerless_within_a_second() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start_with(default_timing(), store.clone()).await;
    let third = TestNode::start_with(default_timing(), store.clone()).await;
    let mut other = TestNode::start_with(default_timing(), store.clone()).await;
    all_linked(&store, &[&one, &other, &third]).await;
    create_session_at(&store, "a-session", other.cluster.incarnation()).await;

    let killed = Instant::now();
    other.kill();
    while !matches!(one.find("a-session").await, SessionLocation::Ownerless(..)) {
        assert!(killed.elapsed() < Duration::from_secs(2), "still not ownerless");
        sleep(Duration::from_millis(5)).await;
    }
    // Takes about 210 ms; the rest is tolerance for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    wait_until("the live nodes act", || one.cluster.may_act() && third.cluster.may_act()).await;
}

/// The lease of each killed node lists a link to the other, which does not prove that either is
/// alive.
#[tokio::test]
async fn sessions_of_two_processes_killed_at_once_become_ownerless_within_a_second() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start_with(default_timing(), store.clone()).await;
    let mut others = [
        TestNode::start_with(default_timing(), store.clone()).await,
        TestNode::start_with(default_timing(), store.clone()).await,
    ];
    all_linked(&store, &[&one, &others[0], &others[1]]).await;
    create_session_at(&store, "a-session", others[0].cluster.incarnation()).await;
    create_session_at(&store, "b-session", others[1].cluster.incarnation()).await;

    let killed = Instant::now();
    others.iter_mut().for_each(TestNode::kill);
    for session in ["a-session", "b-session"] {
        while !matches!(one.find(session).await, SessionLocation::Ownerless(..)) {
            assert!(killed.elapsed() < Duration::from_secs(2), "{session} is still not ownerless");
            sleep(Duration::from_millis(5)).await;
        }
    }
    // Takes about 270 ms; the rest is tolerance for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(1), "{:?}", killed.elapsed());
    wait_until("the live node acts", || one.cluster.may_act()).await;
}

#[tokio::test]
async fn a_firewall_that_resets_every_link_between_two_nodes_kills_neither() {
    let (store, nodes, [to_one, to_other]) = two_behind_proxies(default_timing()).await;
    for proxy in [&to_one, &to_other] {
        proxy.reset_both_ends();
    }
    // Longer than a firewall takes to reload, and longer than the detection of a killed process
    // takes.
    sleep(Duration::from_millis(2_000)).await;
    for proxy in [&to_one, &to_other] {
        proxy.restore_traffic();
    }
    both_live(&store, &nodes).await;
}

#[tokio::test]
async fn a_link_that_breaks_at_once_again_and_again_is_established_at_intervals() {
    let (store, nodes, proxies) = two_behind_proxies(default_timing()).await;
    let before = metrics::LINKS_BROKEN.get();
    // Many times as long as a handshake takes, and shorter than a lease.
    for _ in 0..50 {
        proxies.iter().for_each(Proxy::reset_both_ends);
        sleep(Duration::from_millis(1)).await;
        proxies.iter().for_each(Proxy::restore_traffic);
        sleep(Duration::from_millis(19)).await;
    }
    // Each of the two links breaks at first, and then once in 250 ms.
    let broken = metrics::LINKS_BROKEN.get() - before;
    assert!(broken <= 2 * 5, "{broken} links broke within a second");
    both_live(&store, &nodes).await;
}

#[tokio::test]
async fn a_node_that_receives_no_reset_of_its_links_is_not_marked_dead() {
    let (store, nodes, [to_one, to_other]) = two_behind_proxies(default_timing()).await;
    // `one` calls through `to_other` and is called through `to_one`.
    to_other.reset_near_ends();
    to_one.reset_far_ends();
    sleep(Duration::from_millis(2_000)).await;
    for proxy in [&to_one, &to_other] {
        proxy.restore_traffic();
    }
    both_live(&store, &nodes).await;
}

/// Two linked nodes. The second has a store handle of its own, which can be made unreachable.
async fn two_linked() -> (Arc<Memory>, [TestNode; 2], [Proxy; 2], Arc<FlakyStore>) {
    let store = Arc::new(Memory::default());
    let away = FlakyStore::from(&store);
    let (one, to_one) = TestNode::start_behind_proxy(default_timing(), store.clone()).await;
    let (other, to_other) = TestNode::start_behind_proxy(default_timing(), away.clone()).await;
    all_linked(&store, &[&one, &other]).await;
    (store, [one, other], [to_one, to_other], away)
}

/// Breaks the links between two nodes and redirects the first one's connections to the second to
/// another address, for longer than the detection of a replaced process takes. Returns whether the
/// second node was not marked dead.
async fn survives_rerouting_to(
    elsewhere: &str,
    store: &Memory,
    node: &TestNode,
    [to_one, to_node]: &[Proxy; 2],
) -> bool {
    to_one.reset_both_ends();
    to_node.reset_both_ends();
    sleep(Duration::from_millis(100)).await;
    to_node.route_to(elsewhere.parse().unwrap());
    to_node.restore_traffic();
    sleep(Duration::from_millis(2_500)).await;
    let presence = store.presence(node.cluster.incarnation()).await.unwrap();
    matches!(presence, Presence::Live(_))
}

#[tokio::test]
async fn a_connection_redirected_to_its_caller_proves_no_death() {
    let (store, [one, other], proxy, away) = two_linked().await;
    // Its lease is no longer renewed, like that of a node that is gone.
    away.away.store(true, Ordering::SeqCst);
    let itself = &one.cluster.node.settings.listen;
    assert!(survives_rerouting_to(itself, &store, &other, &proxy).await);
}

#[tokio::test]
async fn a_connection_redirected_to_a_node_of_another_address_proves_no_death() {
    let (store, [_one, other], proxy, away) = two_linked().await;
    away.away.store(true, Ordering::SeqCst);
    // It knows the secret and is a member of another cluster.
    let stranger = TestNode::start(&Arc::new(Memory::default())).await;
    assert!(survives_rerouting_to(stranger.cluster.address(), &store, &other, &proxy).await);
}

#[tokio::test]
async fn a_node_whose_lease_is_renewed_is_not_marked_dead_if_another_answers_at_its_address() {
    let (store, [_one, other], proxy, _) = two_linked().await;
    // It uses the store of another cluster, so that it is allowed to start.
    let free = free_address();
    let twin = Settings {
        listen: free.to_string(),
        advertise: proxy[1].address.clone(),
        ..default_timing()
    };
    let twin = TestNode::start_with(twin, Arc::new(Memory::default())).await;
    assert_eq!(twin.cluster.address(), other.cluster.address());
    assert!(survives_rerouting_to(&free.to_string(), &store, &other, &proxy).await);
    assert!(other.cluster.may_act());
}

#[tokio::test]
async fn a_node_does_not_start_at_the_address_of_a_live_node() {
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
async fn a_node_that_lost_a_link_does_not_act_until_it_has_renewed_its_lease() {
    let store = Arc::new(FlakyStore::default());
    let fast_renewals = Settings { renew_ms: 20, ..settings() };
    let (one, _) = node(&store, fast_renewals.clone()).await;
    let mut other = TestNode::start_with(fast_renewals, store.clone()).await;
    wait_until("they are linked", || one.node.peers.is_linked(other.cluster.incarnation())).await;
    let mut changes = one.changes();
    store.away.store(true, Ordering::SeqCst);
    other.kill();
    wait_until("it stops acting", || !one.may_act()).await;

    changes.borrow_and_update();
    store.away.store(false, Ordering::SeqCst);
    changes.changed().await.unwrap();
    // It was not cut off for long enough to lose its lease.
    assert_eq!(one.valid_lease_generation(), Some(0));
}

#[tokio::test]
async fn sessions_go_to_a_node_that_does_not_drain_and_has_the_fewest() {
    let store = Arc::new(Memory::default());
    let one = TestNode::start(&store).await;
    assert!(one.cluster.willing().is_none());
    let (busy, idle) = (TestNode::start(&store).await, TestNode::start(&store).await);
    busy.cluster.load().set(7);
    idle.cluster.load().set(3);
    let willing = || one.cluster.willing().map(|peer| peer.incarnation());
    wait_until("the idle node is chosen", || willing() == Some(idle.cluster.incarnation())).await;
    idle.cluster.set_draining(true);
    wait_until("the busy node is chosen", || willing() == Some(busy.cluster.incarnation())).await;
    busy.cluster.set_draining(true);
    wait_until("no node is chosen", || willing().is_none()).await;
}
