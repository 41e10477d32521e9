//! How nodes hold leases, and how a node is marked dead.

use super::*;
use crate::{Lease, Marking, Presence};

/// A node that is not in the store yet, with links to these nodes.
fn node(linked: &[Incarnation]) -> Lease {
    Lease {
        incarnation: Incarnation(random()),
        renewal: 1,
        acknowledged: 0,
        name: "node-a".into(),
        address: "10.0.0.4:7070".into(),
        draining: false,
        load: 3,
        linked: linked.to_vec(),
    }
}

/// A node whose lease does not expire during the test.
async fn live(world: &dyn World, linked: &[Incarnation]) -> Lease {
    let lease = node(linked);
    world.store().renew(lease.clone(), LONG).await.expect("renewed");
    lease
}

/// The next renewal of a lease whose last one was answered.
fn next(lease: &Lease) -> Lease {
    Lease { renewal: lease.renewal + 1, acknowledged: lease.renewal, ..lease.clone() }
}

async fn presence(world: &dyn World, node: &Lease) -> Presence {
    world.store().presence(node.incarnation).await.expect("the store answers")
}

async fn mark(world: &dyn World, node: &Lease, by: &Lease) -> Result<Marking, Error> {
    world.store().mark_dead(node.incarnation, by.incarnation, &[], None, LONG).await
}

#[track_caller]
fn marked_dead_by<T: Debug>(node: &Lease, answer: Result<T, Error>) {
    match answer {
        Err(Error::MarkedDead { by }) => assert_eq!(by, node.incarnation),
        other => panic!("expected a mark by {:?}, not {other:?}", node.incarnation),
    }
}

/// If the lease had lapsed, other nodes may have claimed the sessions of the node.
pub async fn a_renewal_returns_whether_the_lease_was_there(world: &dyn World) {
    let mut lease = node(&[]);
    for (pass, was_there) in [
        (Duration::ZERO, false),
        (MOST_OF_SHORT, true),
        (MOST_OF_SHORT, true),
        (MORE_THAN_SHORT, false),
    ] {
        world.pass(pass).await;
        lease = next(&lease);
        let renewed = world.store().renew(lease.clone(), SHORT).await.expect("renewed");
        assert_eq!(renewed.was_there, was_there, "after {pass:?}");
    }
}

/// The store repeats the answer until the node acknowledges it: a lost answer must not hide that
/// other nodes may have claimed.
pub async fn a_lapse_of_a_lease_is_reported_until_it_is_acknowledged(world: &dyn World) {
    let mut lease = node(&[]);
    // For each renewal: the time before it, and whether its answer arrives.
    for (pass, arrives, was_there) in [
        (Duration::ZERO, true, false),
        (MOST_OF_SHORT, false, true),
        (MOST_OF_SHORT, true, true),
        (MORE_THAN_SHORT, false, false),
        (Duration::ZERO, false, false),
        (MOST_OF_SHORT, true, false),
        (MOST_OF_SHORT, true, true),
    ] {
        world.pass(pass).await;
        lease.renewal += 1;
        let renewed = world.store().renew(lease.clone(), SHORT).await.expect("renewed");
        assert_eq!(renewed.was_there, was_there, "renewal {}", lease.renewal);
        if arrives {
            lease.acknowledged = lease.renewal;
        }
    }
}

/// The newest lease replaces the older ones.
pub async fn a_live_node_is_listed_with_its_newest_lease(world: &dyn World) {
    let peer = live(world, &[]).await;
    let mut lease = live(world, &[]).await;
    lease.renewal += 1;
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

/// A lease lapses by itself: no node has to mark its holder dead.
pub async fn a_lapsed_node_is_gone(world: &dyn World) {
    let lease = node(&[]);
    assert_eq!(presence(world, &lease).await, Presence::Gone);
    world.store().renew(lease.clone(), SHORT).await.expect("renewed");
    world.pass(MORE_THAN_SHORT).await;
    assert_eq!(presence(world, &lease).await, Presence::Gone);
    let nodes = world.store().nodes().await.expect("listed");
    assert!(nodes.iter().all(|node| node.incarnation != lease.incarnation));
}

/// A process that resumes after a long pause gets an error for its next renewal.
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

/// A broken connection between two nodes does not prove that one is dead.
pub async fn a_node_to_which_a_live_peer_has_a_link_is_not_marked(world: &dyn World) {
    let suspect = live(world, &[]).await;
    let witness = live(world, &[suspect.incarnation]).await;
    let marker = live(world, &[]).await;
    let marking = mark(world, &suspect, &marker).await.expect("answered");
    assert_eq!(marking, Marking::LinkedTo(witness.incarnation));
    assert_eq!(presence(world, &suspect).await, Presence::Live(suspect.clone()));
    // The witness loses its link as well, and renews its lease without it.
    world
        .store()
        .renew(Lease { linked: Vec::new(), ..next(&witness) }, LONG)
        .await
        .expect("renewed");
    assert_eq!(mark(world, &suspect, &marker).await.expect("marked"), Marking::Dead);
}

/// Their processes ended together, and their leases still list each other.
pub async fn two_nodes_that_died_together_can_be_marked(world: &dyn World) {
    let mut one = node(&[]);
    let other = live(world, &[one.incarnation]).await;
    one.linked = vec![other.incarnation];
    world.store().renew(one.clone(), LONG).await.expect("renewed");
    let third = live(world, &[]).await;
    let (store, marker) = (world.store(), live(world, &[]).await.incarnation);
    let marked = store.mark_dead(one.incarnation, marker, &[], None, LONG).await.expect("answered");
    assert_eq!(marked, Marking::LinkedTo(other.incarnation));
    // A link of a node that is not in `also_dead` prevents the mark.
    let unknown = [third.incarnation];
    let marked =
        store.mark_dead(one.incarnation, marker, &unknown, None, LONG).await.expect("answered");
    assert_eq!(marked, Marking::LinkedTo(other.incarnation));
    for (dead, also_dead) in [(&one, &other), (&other, &one)] {
        let also_dead = [also_dead.incarnation];
        let marking = store.mark_dead(dead.incarnation, marker, &also_dead, None, LONG).await;
        assert_eq!(marking.expect("marked"), Marking::Dead);
    }
}

/// A mark may arrive long after it was sent.
pub async fn a_node_that_renewed_since_it_was_found_dead_is_not_marked(world: &dyn World) {
    let (suspect, marker) = (live(world, &[]).await, live(world, &[]).await.incarnation);
    let mark = |node: &Lease, seen| {
        let incarnation = node.incarnation;
        async move { world.store().mark_dead(incarnation, marker, &[], Some(seen), LONG).await }
    };
    world.store().renew(next(&suspect), LONG).await.expect("renewed");
    let seen = suspect.renewal;
    assert_eq!(mark(&suspect, seen).await.expect("answered"), Marking::Renewed);
    assert!(matches!(presence(world, &suspect).await, Presence::Live(_)));
    assert_eq!(mark(&suspect, seen + 1).await.expect("answered"), Marking::Dead);
    // A mark stays for any number of the renewal. A node without a lease is marked for any number.
    assert_eq!(mark(&suspect, seen).await.expect("answered"), Marking::Dead);
    assert_eq!(mark(&node(&[]), seen).await.expect("answered"), Marking::Dead);
}

/// A dead node cannot report that its link broke, and the marker reports that its own did.
pub async fn links_of_dead_nodes_and_of_the_marker_prevent_no_mark(world: &dyn World) {
    let suspect = live(world, &[]).await;
    let links = [suspect.incarnation];
    let (marker, dead) = (live(world, &links).await, live(world, &links).await);
    let lapsed = node(&links);
    world.store().renew(lapsed, SHORT).await.expect("renewed");
    world.pass(MORE_THAN_SHORT).await;
    assert_eq!(mark(world, &dead, &marker).await.expect("marked"), Marking::Dead);
    assert_eq!(mark(world, &suspect, &marker).await.expect("marked"), Marking::Dead);
}

/// Otherwise one broken connection between two nodes would end both.
pub async fn of_two_nodes_that_mark_each_other_the_first_wins(world: &dyn World) {
    let (one, other) = (live(world, &[]).await, live(world, &[]).await);
    assert_eq!(mark(world, &other, &one).await.expect("marked"), Marking::Dead);
    marked_dead_by(&one, mark(world, &one, &other).await);
    assert_eq!(presence(world, &one).await, Presence::Live(one));
}

/// A node that may not act may not mark another node dead.
pub async fn a_node_without_a_lease_marks_no_node(world: &dyn World) {
    let (suspect, marker) = (live(world, &[]).await, node(&[]));
    let refused = mark(world, &suspect, &marker).await;
    assert!(matches!(refused, Err(Error::LeaseGone)), "{refused:?}");
    world.store().renew(marker.clone(), SHORT).await.expect("renewed");
    world.pass(MORE_THAN_SHORT).await;
    let refused = mark(world, &suspect, &marker).await;
    assert!(matches!(refused, Err(Error::LeaseGone)), "{refused:?}");
    assert_eq!(presence(world, &suspect).await, Presence::Live(suspect));
}

/// The first mark stays.
pub async fn marking_again_succeeds(world: &dyn World) {
    let dead = live(world, &[]).await;
    let (first, second) = (live(world, &[]).await, live(world, &[]).await);
    for by in [&first, &first, &second] {
        assert_eq!(mark(world, &dead, by).await.expect("marked"), Marking::Dead);
        assert_eq!(presence(world, &dead).await, Presence::Dead { by: first.incarnation });
    }
}

/// The node might resume after a long pause.
pub async fn a_node_that_is_gone_can_be_marked_and_stays_dead(world: &dyn World) {
    let (gone, marker) = (node(&[]), live(world, &[]).await);
    assert_eq!(mark(world, &gone, &marker).await.expect("marked"), Marking::Dead);
    marked_dead_by(&marker, world.store().renew(gone, LONG).await);
}

/// A mark may expire, since incarnations do not repeat.
pub async fn a_mark_expires(world: &dyn World) {
    let (dead, marker) = (live(world, &[]).await, live(world, &[]).await);
    let marking =
        world.store().mark_dead(dead.incarnation, marker.incarnation, &[], None, SHORT).await;
    assert_eq!(marking.expect("marked"), Marking::Dead);
    world.pass(MORE_THAN_SHORT).await;
    assert_eq!(presence(world, &dead).await, Presence::Gone);
}

/// The answer to the first attempt, that the lease was gone, may have been lost.
pub async fn a_repeated_renewal_is_answered_as_the_first_one_was(world: &dyn World) {
    let first = node(&[]);
    for _ in 0..2 {
        let renewed = world.store().renew(first.clone(), LONG).await.expect("renewed");
        assert!(!renewed.was_there);
    }
    let second = next(&first);
    for _ in 0..2 {
        let renewed = world.store().renew(second.clone(), LONG).await.expect("renewed");
        assert!(renewed.was_there);
    }
}

/// A late renewal has the links of an earlier time.
pub async fn a_late_renewal_changes_nothing(world: &dyn World) {
    let late = live(world, &[Incarnation(7)]).await;
    let newer = Lease { linked: Vec::new(), draining: true, ..next(&late) };
    world.store().renew(newer.clone(), LONG).await.expect("renewed");
    let refused = world.store().renew(late, LONG).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    let kept = Lease { acknowledged: 0, ..newer.clone() };
    assert_eq!(presence(world, &newer).await, Presence::Live(kept));
}

/// The process may have ended while one of its renewals was in flight.
pub async fn a_node_that_left_is_not_brought_back_by_a_late_renewal(world: &dyn World) {
    let lease = live(world, &[]).await;
    for _ in 0..2 {
        world.store().leave(lease.incarnation, LONG).await.expect("left");
    }
    marked_dead_by(&lease, world.store().renew(next(&lease), LONG).await);
    assert_eq!(presence(world, &lease).await, Presence::Dead { by: lease.incarnation });
    let nodes = world.store().nodes().await.expect("listed");
    assert!(nodes.iter().all(|node| node.incarnation != lease.incarnation));
}
