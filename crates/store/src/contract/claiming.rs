//! How a session is claimed, and that it never has two owners.

use super::*;
use crate::redis::slot_of;

/// The answer has all that the new owner needs.
pub async fn a_claim_returns_the_record_and_the_log(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    through(scene.append(old, 1, 1, "a b").await, 2);
    let new = heir(old);
    let claimed = scene.claim(old.token, new).await.expect("claimed");
    assert_eq!(claimed.record, scene.record_after(new, &[old]));
    assert_eq!(claimed.log, [(1, Bytes::from("a")), (2, Bytes::from("b"))]);
    assert_eq!(scene.read().await, Some(claimed.record));
    scene.holds(1, "a b").await;
}

/// The answer to the first attempt may have been lost.
pub async fn a_repeated_claim_succeeds(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    let new = heir(old);
    let once = scene.claim(old.token, new).await.expect("claimed");
    assert_eq!(scene.claim(old.token, new).await.expect("a repetition succeeds"), once);
    through(scene.append(new, 1, 1, "a").await, 1);
    let again = scene.claim(old.token, new).await.expect("a repetition succeeds");
    assert_eq!((again.record, again.log.len()), (once.record, 1));
}

/// Both expected the same dead owner.
pub async fn of_two_claims_one_wins(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    fenced_by(new, scene.claim(old.token, heir(old)).await);
    scene.is_owned_by(new).await;
}

/// Counters repeat if two nodes claim at once, or if a failover loses a claim.
pub async fn two_claims_with_one_counter_are_two_claims(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    let rival = Owner { token: Token { random: new.token.random ^ 1, ..new.token }, ..new };
    fenced_by(new, scene.claim(old.token, rival).await);
    fenced_by(new, scene.append(rival, 1, 1, "a").await);
    through(scene.append(new, 1, 1, "a").await, 1);
}

/// The claim timed out, and is executed after other nodes have owned the session.
pub async fn a_late_claim_changes_nothing(world: &dyn World) {
    let (scene, first, second) = Scene::claimed(world).await;
    let third = heir(second);
    scene.claim(second.token, third).await.expect("claimed");
    fenced_by(third, scene.claim(first.token, second).await);
    scene.release(third).await.expect("released");
    // It is refused also if its expectation holds again.
    fenced_by(third, scene.claim_released(second).await);
    released(scene.claim_released(third).await);
}

/// The session has had another owner since the claimant read the record.
pub async fn a_claim_that_expects_a_past_owner_is_refused(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    fenced_by(new, scene.claim(old.token, heir(new)).await);
    fenced_by(new, scene.claim(Token::first(1), heir(new)).await);
    scene.is_owned_by(new).await;
}

/// The counters of tokens give the order of owners.
pub async fn a_claim_must_raise_the_counter(world: &dyn World) {
    let (scene, _, owner) = Scene::claimed(world).await;
    for counter in [0, owner.token.counter] {
        let low = Owner { token: Token { counter, random: 1 }, ..owner };
        fenced_by(owner, scene.claim(owner.token, low).await);
    }
}

/// After its lease lapsed, a node claims its session again, so that another node's claim and its
/// own exclude each other.
pub async fn a_node_may_claim_from_itself(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    let again = Owner { node: old.node, ..heir(old) };
    scene.claim(old.token, again).await.expect("claimed");
    fenced_by(again, scene.claim(old.token, heir(old)).await);
    fenced_by(again, scene.append(old, 1, 1, "a").await);
    through(scene.append(again, 1, 1, "a").await, 1);
}

/// Former tokens identify a record that lost a claim.
pub async fn former_tokens_are_kept_newest_first_and_sixteen_at_most(world: &dyn World) {
    let (scene, mut owner) = Scene::owned(world).await;
    let mut before = Vec::new();
    for _ in 0..20 {
        before.insert(0, owner.token);
        let new = heir(owner);
        let claimed = scene.claim(owner.token, new).await.expect("claimed");
        before.truncate(crate::FORMER_MAX);
        assert_eq!(claimed.record.former, before);
        owner = new;
    }
    assert_eq!(before.len(), 16);
    let record = scene.read().await.expect("there");
    assert!(record.came_after(before[15]) && !record.came_after(owner.token));
    // A record that is created with more of them keeps sixteen, too.
    let (anew, former) = (Scene::new(world), vec![Token::first(1); 20]);
    anew.create(Record { former, ..anew.record(owner) }).await.expect("made");
    assert_eq!(anew.read().await.expect("there").former.len(), 16);
}

/// A claim of a released session needs no proof that a node is dead.
pub async fn a_released_session_goes_to_the_first_claimant(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    through(scene.append(old, 1, 1, "a").await, 1);
    scene.release(old).await.expect("released");
    let (new, late) = (heir(old), heir(old));
    let claimed = scene.claim_released(new).await.expect("claimed");
    assert_eq!((claimed.record.former, claimed.log.len()), (vec![old.token], 1));
    scene.is_owned_by(new).await;
    fenced_by(new, scene.claim_released(late).await);
    scene.claim_released(new).await.expect("a repetition succeeds");
}

/// The claimant read the release of a former owner.
pub async fn an_owned_session_is_not_taken_for_released(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    fenced_by(owner, scene.claim_released(heir(owner)).await);
    scene.is_owned_by(owner).await;
}

/// The claimant expected the owner's token, and the owner released the session meanwhile.
pub async fn a_claim_from_an_owner_that_released_meanwhile_succeeds(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    scene.release(old).await.expect("released");
    let new = heir(old);
    scene.claim(old.token, new).await.expect("claimed");
    scene.is_owned_by(new).await;
}

/// The numbers of entries continue across owners.
pub async fn a_claimed_log_continues_where_it_ended(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    through(scene.append(old, 1, 1, "a b").await, 2);
    let new = heir(old);
    scene.claim(old.token, new).await.expect("claimed");
    hole_after(Some(2), scene.append(new, 4, 1, "d").await);
    through(scene.append(new, 3, 1, "c").await, 3);
    fenced_by(new, scene.append(old, 3, 1, "x").await);
    scene.holds(1, "a b c").await;
}

/// The primary that was read may have a newer owner than this one.
pub async fn no_claim_or_release_is_executed_that_names_another_primary(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    let (session, new) = (&scene.session, heir(old));
    let primaries = world.store().primaries().await.expect("told");
    let here =
        primaries.iter().find(|primary| primary.holds_slot(|| slot_of(session))).expect("kept").id;
    let elsewhere = PrimaryId(!here.0);
    let claim = async |at| {
        world.store().claim(session, Expected::Token(old.token), new, Some(at), LONG).await
    };
    let release = async |at| world.store().release(session, new.token, Some(at), LONG).await;
    let refused = claim(elsewhere).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    scene.is_owned_by(old).await;
    claim(here).await.expect("claimed");
    let refused = release(elsewhere).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    scene.is_owned_by(new).await;
    release(here).await.expect("released");
}
