//! How a session is released, and how it is ended.

use super::*;

/// The answer to the first attempt may have been lost.
pub async fn a_repeated_release_succeeds(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    for _ in 0..2 {
        scene.release(owner).await.expect("released");
        assert_eq!(scene.read().await.expect("there").status, RecordStatus::Released);
    }
}

/// A release is the last operation under a token: an owner that continues after one claims the
/// session again.
pub async fn nothing_is_done_under_a_released_token(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a").await, 1);
    scene.release(owner).await.expect("released");
    released(scene.append(owner, 2, 1, "b").await);
    released(scene.append(owner, 2, 1, "").await);
    released(scene.save(owner, 9, "nine").await);
    released(scene.end(owner).await);
    scene.holds(1, "a").await;
    let again = Owner { node: owner.node, ..heir(owner) };
    scene.claim_released(again).await.expect("claimed");
    through(scene.append(again, 2, 1, "b").await, 2);
}

/// The release timed out, and its sender claimed the session from itself.
pub async fn a_late_release_does_not_release_the_next_owner(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    fenced_by(new, scene.release(old).await);
    scene.is_owned_by(new).await;
    through(scene.append(new, 1, 1, "a").await, 1);
}

/// A release loses neither state nor log.
pub async fn a_release_leaves_state_and_log_to_the_next_owner(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    through(scene.append(old, 1, 1, "a b").await, 2);
    scene.save(old, 2, "two").await.expect("saved");
    scene.release(old).await.expect("released");
    let claimed = scene.claim_released(heir(old)).await.expect("claimed");
    assert_eq!((claimed.record.state.version, claimed.log.len()), (2, 2));
}

/// The tombstone has the status `Ended` and the owner that ended the session.
pub async fn an_ended_session_is_a_tombstone_without_a_log(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a b").await, 2);
    scene.end(owner).await.expect("ended");
    scene.holds(0, "").await;
    let record = scene.read().await.expect("a tombstone");
    assert_eq!((record.owner, record.status), (owner, RecordStatus::Ended));
    assert!(record.initialize.is_empty() && record.state.bytes.is_empty());
}

/// The answer to the first attempt may have been lost. Any owner that ends an ended session gets
/// the same answer.
pub async fn a_repeated_end_succeeds(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    scene.end(owner).await.expect("ended");
    scene.end(owner).await.expect("a repetition succeeds");
    scene.end(heir(owner)).await.expect("already ended");
    assert_eq!(scene.read().await.expect("there").owner, owner);
}

/// No late operation restores it.
pub async fn an_ended_session_takes_nothing(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    scene.end(owner).await.expect("ended");
    ended(scene.create(scene.record(owner)).await);
    ended(scene.append(owner, 1, 1, "a").await);
    ended(scene.append(owner, 1, 1, "").await);
    ended(scene.save(owner, 9, "nine").await);
    ended(scene.release(owner).await);
    ended(scene.claim(owner.token, heir(owner)).await);
    ended(scene.claim(owner.token, owner).await);
    ended(scene.claim_released(heir(owner)).await);
    scene.holds(0, "").await;
}

/// The client may have requests at the next owner already.
pub async fn a_deposed_owner_ends_nothing(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    fenced_by(new, scene.end(old).await);
    scene.is_owned_by(new).await;
}

/// Its time to live replaces that of the session.
pub async fn a_tombstone_expires(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    world.store().end(&scene.session, owner.token, SHORT).await.expect("ended");
    world.pass(MOST_OF_SHORT).await;
    assert_eq!(scene.read().await.expect("a tombstone").status, RecordStatus::Ended);
    world.pass(MOST_OF_SHORT).await;
    assert_eq!(scene.read().await, None);
}
