//! How an owner re-asserts its session after a failover, and how other owners are refused.

use super::*;

/// The session was evicted, or its creation was lost by a failover.
pub async fn a_missing_session_is_written_anew(world: &dyn World) {
    let (scene, owner) = (Scene::new(world), first());
    let record = scene.record_after(owner, &[first()]);
    through(scene.reassert(record.clone(), 4, 4, "d e").await, 5);
    assert_eq!(scene.read().await, Some(record));
    scene.holds(4, "d e").await;
    through(scene.append(owner, 6, 4, "f").await, 6);
}

/// Entries that the former owner appended later are void: this owner sent them to no client.
pub async fn a_record_that_lost_a_claim_is_replaced_with_its_log(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    through(scene.append(old, 1, 1, "a b x y z").await, 5);
    let owner = heir(old);
    fenced_by(old, scene.append(owner, 4, 2, "d").await);
    let record = scene.record_after(owner, &[old]);
    assert!(record.came_after(old.token));
    through(scene.reassert(record.clone(), 2, 2, "b c").await, 3);
    assert_eq!(scene.read().await, Some(record));
    scene.holds(2, "b c").await;
    fenced_by(owner, scene.append(old, 6, 1, "late").await);
    through(scene.append(owner, 4, 2, "d").await, 4);
}

/// A failover may lose more than one claim.
pub async fn a_record_that_lost_several_claims_is_replaced(world: &dyn World) {
    let (scene, oldest) = Scene::owned(world).await;
    let old = heir(oldest);
    let owner = heir(old);
    through(scene.reassert(scene.record_after(owner, &[old, oldest]), 1, 1, "a").await, 1);
    scene.is_owned_by(owner).await;
}

/// The lost claim followed a release of the former owner.
pub async fn a_released_record_that_lost_a_claim_is_replaced(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    scene.release(old).await.expect("released");
    let owner = heir(old);
    through(scene.reassert(scene.record_after(owner, &[old]), 1, 1, "a").await, 1);
    scene.is_owned_by(owner).await;
    scene.holds(1, "a").await;
}

/// Only the end of the log may be lost, so only that is written.
pub async fn under_the_own_token_only_missing_entries_are_appended(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a b").await, 2);
    through(scene.reassert(scene.record(owner), 1, 1, "a b c").await, 3);
    scene.holds(1, "a b c").await;
    through(scene.reassert(scene.record(owner), 2, 2, "b c d").await, 4);
    scene.holds(2, "b c d").await;
    // A late re-assertion has fewer entries.
    through(scene.reassert(scene.record(owner), 1, 1, "a b").await, 2);
    scene.holds(2, "b c d").await;
}

/// An acknowledged state that was lost is restored, and a late one does not replace a newer one.
pub async fn under_the_own_token_only_a_newer_state_is_saved(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    let mut record = scene.record(owner);
    record.state = State { version: 3, bytes: (*b"three").into() };
    scene.reassert(record.clone(), 1, 1, "").await.expect("taken");
    assert_eq!(scene.read().await.expect("there").state, record.state);
    scene.reassert(scene.record(owner), 1, 1, "").await.expect("taken");
    assert_eq!(scene.read().await.expect("there").state, record.state);
}

/// The answer to the first attempt may have been lost.
pub async fn reasserting_again_succeeds(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    let owner = heir(old);
    let record = scene.record_after(owner, &[old]);
    for _ in 0..3 {
        through(scene.reassert(record.clone(), 1, 1, "a b").await, 2);
        scene.holds(1, "a b").await;
    }
    assert_eq!(scene.read().await, Some(record));
}

/// The session has an owner that is no predecessor of this one, so this owner stops.
pub async fn the_session_of_another_owner_is_not_taken_by_reasserting(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    let stranger = Owner { token: Token { counter: 99, random: 1 }, ..first() };
    fenced_by(owner, scene.reassert(scene.record(stranger), 1, 1, "x").await);
    scene.is_owned_by(owner).await;
    scene.holds(0, "").await;
}

/// An owner that resumes after a long pause re-asserts a session that it lost.
pub async fn reasserting_late_does_not_undo_the_next_claim(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    through(scene.append(new, 1, 1, "a").await, 1);
    fenced_by(new, scene.reassert(scene.record(old), 1, 1, "x y").await);
    scene.is_owned_by(new).await;
    scene.holds(1, "a").await;
}

/// The owner that released a session cannot re-assert it.
pub async fn reasserting_late_does_not_undo_a_release(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    scene.release(owner).await.expect("released");
    released(scene.reassert(scene.record(owner), 1, 1, "x").await);
    assert_eq!(scene.read().await.expect("there").status, RecordStatus::Released);
    scene.holds(0, "").await;
}

/// A ring has all replayable entries, so it begins at its floor.
pub async fn a_ring_that_does_not_begin_at_its_floor_is_refused_and_changes_nothing(
    world: &dyn World,
) {
    let (scene, old) = Scene::owned(world).await;
    through(scene.append(old, 1, 1, "a").await, 1);
    let record = scene.record_after(heir(old), &[old]);
    hole_after(None, scene.reassert(record, 3, 2, "c").await);
    scene.is_owned_by(old).await;
    scene.holds(1, "a").await;
    let nowhere = Scene::new(world);
    hole_after(None, nowhere.reassert(nowhere.record(first()), 3, 2, "c").await);
    assert_eq!(nowhere.read().await, None);
}

/// A session that has ended is not restored.
pub async fn a_tombstone_is_not_undone_by_reasserting(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    scene.end(owner).await.expect("ended");
    ended(scene.reassert(scene.record(owner), 1, 1, "x").await);
    let claimant = heir(owner);
    ended(scene.reassert(scene.record_after(claimant, &[owner]), 1, 1, "x").await);
    assert_eq!(scene.read().await.expect("there").status, RecordStatus::Ended);
    scene.holds(0, "").await;
}

/// The record may be missing, or still owned by the token that ended the session or by an earlier
/// one.
pub async fn a_tombstone_that_a_failover_lost_is_restored(world: &dyn World) {
    let ended_by = |scene: &Scene<'_>, owner, old: &[Owner]| Record {
        status: RecordStatus::Ended,
        ..scene.record_after(owner, old)
    };
    let (alive, owner) = Scene::owned(world).await;
    through(alive.append(owner, 1, 1, "a").await, 1);
    let (back, old) = Scene::owned(world).await;
    let nowhere = Scene::new(world);
    for (scene, record) in [
        (&alive, ended_by(&alive, owner, &[])),
        (&back, ended_by(&back, heir(old), &[old])),
        (&nowhere, ended_by(&nowhere, owner, &[])),
    ] {
        for _ in 0..2 {
            scene.reassert(record.clone(), 2, 1, "").await.expect("taken");
            assert_eq!(scene.read().await.expect("there").status, RecordStatus::Ended);
            scene.holds(0, "").await;
        }
        ended(scene.create(scene.record(record.owner)).await);
    }
}

/// Only the owner can end a session.
pub async fn a_tombstone_of_a_deposed_owner_ends_nothing(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    let record = Record { status: RecordStatus::Ended, ..scene.record(old) };
    fenced_by(new, scene.reassert(record, 1, 1, "").await);
    scene.is_owned_by(new).await;
}
