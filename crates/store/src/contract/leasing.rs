//! Which nodes may act, and who may say that one is dead.

use super::*;
use crate::{Lease, Marking, Presence};

/// A node that nobody has heard of yet, with links to these.
fn node(linked: &[Incarnation]) -> Lease {
    Lease {
        incarnation: Incarnation(random()),
        name: "node-a".into(),
        address: "10.0.0.4:7070".into(),
        draining: false,
        load: 3,
        linked: linked.to_vec(),
    }
}

/// A node that has renewed for long.
async fn live(world: &dyn World, linked: &[Incarnation]) -> Lease {
    let lease = node(linked);
    world.store().renew(lease.clone(), LONG).await.expect("renewed");
    lease
}

async fn presence(world: &dyn World, node: &Lease) -> Presence {
    world.store().presence(node.incarnation).await.expect("the store answers")
}

async fn mark(world: &dyn World, node: &Lease, by: &Lease) -> Result<Marking, Error> {
    world.store().mark_dead(node.incarnation, by.incarnation, LONG).await
}

#[track_caller]
fn marked_dead_by<T: Debug>(node: &Lease, answer: Result<T, Error>) {
    match answer {
        Err(Error::MarkedDead { by }) => assert_eq!(by, node.incarnation),
        other => panic!("expected a mark by {:?}, not {other:?}", node.incarnation),
    }
}

/// If it was not, others may have seen it gone and claimed its sessions.
pub async fn a_renewal_says_whether_the_lease_was_there(world: &dyn World) {
    let lease = node(&[]);
    for (pass, was_there) in [
        (Duration::ZERO, false),
        (MOST_OF_SHORT, true),
        (MOST_OF_SHORT, true),
        (MORE_THAN_SHORT, false),
    ] {
        world.pass(pass).await;
        let renewed = world.store().renew(lease.clone(), SHORT).await.expect("renewed");
        assert_eq!(renewed.was_there, was_there, "after {pass:?}");
    }
}

/// The newest description counts.
pub async fn a_live_node_is_listed_as_it_last_described_itself(world: &dyn World) {
    let peer = live(world, &[]).await;
    let mut lease = live(world, &[]).await;
    lease.draining = true;
    lease.load = 0;
    lease.linked = vec![peer.incarnation];
    world.store().renew(lease.clone(), LONG).await.expect("renewed");
    let nodes = world.store().nodes().await.expect("listed");
    let listed: Vec<_> = nodes.iter().filter(|n| n.incarnation == lease.incarnation).collect();
    assert_eq!(listed, [&lease]);
    assert!(nodes.contains(&peer));
    assert_eq!(presence(world, &lease).await, Presence::Live(lease));
}

/// Nobody has to say so.
pub async fn a_lapsed_node_is_gone(world: &dyn World) {
    let lease = node(&[]);
    assert_eq!(presence(world, &lease).await, Presence::Gone);
    world.store().renew(lease.clone(), SHORT).await.expect("renewed");
    world.pass(MORE_THAN_SHORT).await;
    assert_eq!(presence(world, &lease).await, Presence::Gone);
    let nodes = world.store().nodes().await.expect("listed");
    assert!(nodes.iter().all(|node| node.incarnation != lease.incarnation));
}

/// A paused process that wakes up learns that it is over, and not that all is well.
pub async fn a_dead_mark_is_never_overwritten_by_a_renewal(world: &dyn World) {
    let (dead, marker) = (live(world, &[]).await, live(world, &[]).await);
    assert_eq!(mark(world, &dead, &marker).await.expect("marked"), Marking::Dead);
    for _ in 0..2 {
        marked_dead_by(&marker, world.store().renew(dead.clone(), LONG).await);
        assert_eq!(presence(world, &dead).await, Presence::Dead { by: marker.incarnation });
    }
    let nodes = world.store().nodes().await.expect("listed");
    assert!(nodes.iter().all(|node| node.incarnation != dead.incarnation));
}

/// By that a peer that lost its link to a node sees that the node goes on.
pub async fn a_renewal_prolongs_what_is_left_of_a_lease(world: &dyn World) {
    let lease = node(&[]);
    let left = async || world.store().lease_left(lease.incarnation).await.expect("told");
    assert_eq!(left().await, None);
    world.store().renew(lease.clone(), SHORT).await.expect("renewed");
    let whole = left().await.expect("held");
    assert!(whole <= SHORT, "{whole:?}");
    world.pass(MOST_OF_SHORT).await;
    let rest = left().await.expect("held");
    assert!(rest <= SHORT - MOST_OF_SHORT, "{rest:?}");
    world.store().renew(lease.clone(), SHORT).await.expect("renewed");
    assert!(left().await.expect("held") > rest);
    world.pass(MORE_THAN_SHORT).await;
    assert_eq!(left().await, None);
}

/// A broken cable between two is no death.
pub async fn a_node_to_which_a_live_peer_has_a_link_is_not_marked(world: &dyn World) {
    let suspect = live(world, &[]).await;
    let witness = live(world, &[suspect.incarnation]).await;
    let marker = live(world, &[]).await;
    let marking = mark(world, &suspect, &marker).await.expect("answered");
    assert_eq!(marking, Marking::LinkedTo(witness.incarnation));
    assert_eq!(presence(world, &suspect).await, Presence::Live(suspect.clone()));
    // The witness loses its link as well, and says so at once.
    world.store().renew(Lease { linked: Vec::new(), ..witness }, LONG).await.expect("renewed");
    assert_eq!(mark(world, &suspect, &marker).await.expect("marked"), Marking::Dead);
}

/// They no longer know, or just found out.
pub async fn links_of_the_dead_and_of_the_marker_itself_save_nobody(world: &dyn World) {
    let suspect = live(world, &[]).await;
    let links = [suspect.incarnation];
    let (marker, dead) = (live(world, &links).await, live(world, &links).await);
    let lapsed = node(&links);
    world.store().renew(lapsed, SHORT).await.expect("renewed");
    world.pass(MORE_THAN_SHORT).await;
    assert_eq!(mark(world, &dead, &marker).await.expect("marked"), Marking::Dead);
    assert_eq!(mark(world, &suspect, &marker).await.expect("marked"), Marking::Dead);
}

/// Else a reset between two nodes would stop both.
pub async fn of_two_nodes_that_mark_each_other_the_first_wins(world: &dyn World) {
    let (one, other) = (live(world, &[]).await, live(world, &[]).await);
    assert_eq!(mark(world, &other, &one).await.expect("marked"), Marking::Dead);
    marked_dead_by(&one, mark(world, &one, &other).await);
    assert_eq!(presence(world, &one).await, Presence::Live(one));
}

/// Whoever may not act may not judge.
pub async fn a_node_without_a_lease_marks_nobody(world: &dyn World) {
    let (suspect, marker) = (live(world, &[]).await, node(&[]));
    let refused = mark(world, &suspect, &marker).await;
    assert!(matches!(refused, Err(Error::LeaseGone)), "{refused:?}");
    world.store().renew(marker.clone(), SHORT).await.expect("renewed");
    world.pass(MORE_THAN_SHORT).await;
    let refused = mark(world, &suspect, &marker).await;
    assert!(matches!(refused, Err(Error::LeaseGone)), "{refused:?}");
    assert_eq!(presence(world, &suspect).await, Presence::Live(suspect));
}

/// The first mark stands.
pub async fn marking_again_is_yes_again(world: &dyn World) {
    let dead = live(world, &[]).await;
    let (first, second) = (live(world, &[]).await, live(world, &[]).await);
    for by in [&first, &first, &second] {
        assert_eq!(mark(world, &dead, by).await.expect("marked"), Marking::Dead);
        assert_eq!(presence(world, &dead).await, Presence::Dead { by: first.incarnation });
    }
}

/// It might come back from a long pause.
pub async fn a_node_that_is_gone_can_be_marked_and_stays_dead(world: &dyn World) {
    let (gone, marker) = (node(&[]), live(world, &[]).await);
    assert_eq!(mark(world, &gone, &marker).await.expect("marked"), Marking::Dead);
    marked_dead_by(&marker, world.store().renew(gone, LONG).await);
}

/// A mark is not kept for ever; incarnations do not repeat.
pub async fn a_mark_goes_after_its_time(world: &dyn World) {
    let (dead, marker) = (live(world, &[]).await, live(world, &[]).await);
    let marking = world.store().mark_dead(dead.incarnation, marker.incarnation, SHORT).await;
    assert_eq!(marking.expect("marked"), Marking::Dead);
    world.pass(MORE_THAN_SHORT).await;
    assert_eq!(presence(world, &dead).await, Presence::Gone);
}
