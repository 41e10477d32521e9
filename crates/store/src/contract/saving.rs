//! A saved state is kept, and a late one does not replace it.

use super::*;

/// The answer is the version in the record.
pub async fn only_a_higher_version_is_written(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    assert_eq!(scene.save(owner, 2, "two").await.expect("saved"), 2);
    assert_eq!(scene.save(owner, 2, "another two").await.expect("not written"), 2);
    assert_eq!(*scene.read().await.expect("there").state.bytes, *b"two");
    assert_eq!(scene.save(owner, 9, "nine").await.expect("saved"), 9);
    let state = scene.read().await.expect("there").state;
    assert_eq!(state, State { version: 9, bytes: (*b"nine").into() });
}

/// A write that timed out is executed after the one that followed it.
pub async fn a_late_state_does_not_replace_a_newer_one(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    scene.save(owner, 3, "three").await.expect("saved");
    assert_eq!(scene.save(owner, 2, "two").await.expect("not written"), 3);
    assert_eq!(*scene.read().await.expect("there").state.bytes, *b"three");
}

/// A deposed owner is refused also with a higher version.
pub async fn a_deposed_owner_saves_nothing(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    fenced_by(new, scene.save(old, 99, "ninety-nine").await);
    assert_eq!(*scene.read().await.expect("there").state.bytes, *b"one");
}

/// An acknowledged state outlives the node that saved it.
pub async fn a_claimant_gets_the_newest_state(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    scene.save(old, 2, "two").await.expect("saved");
    let claimed = scene.claim(old.token, heir(old)).await.expect("claimed");
    assert_eq!(claimed.record.state, State { version: 2, bytes: (*b"two").into() });
}

/// Versions are counted for the session, not for its owner.
pub async fn a_claimant_continues_from_the_version_that_it_got(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    scene.save(old, 5, "five").await.expect("saved");
    let new = heir(old);
    scene.claim(old.token, new).await.expect("claimed");
    assert_eq!(scene.save(new, 1, "one again").await.expect("not written"), 5);
    assert_eq!(scene.save(new, 6, "six").await.expect("saved"), 6);
}
