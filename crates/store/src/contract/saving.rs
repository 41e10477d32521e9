//! A saved state is kept, and a late one does not replace it.

use super::*;

/// The answer is the version in the record.
pub async fn only_a_higher_version_is_written(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    assert_eq!(scene.save(owner, 2, "two").await.expect("saved"), 2);
    assert_eq!(scene.save(owner, 2, "another two").await.expect("not written"), 2);
    assert_eq!(*scene.read().await.expect("there").state.bytes.to_bytes(), *b"two");
    assert_eq!(scene.save(owner, 9, "nine").await.expect("saved"), 9);
    let state = scene.read().await.expect("there").state;
    assert_eq!(state, State { version: 9, bytes: (*b"nine").into() });
}

/// Bytes are added to the version that they follow, and to no other.
pub async fn an_extension_is_added_to_the_version_before_it(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    scene.save(owner, 2, "two").await.expect("saved");
    assert_eq!(scene.extend(owner, (2, 3), "+three").await.expect("added"), 3);
    let state = scene.read().await.expect("there").state;
    assert_eq!((state.version, &*state.bytes.to_bytes()), (3, &b"two+three"[..]));
    assert!(state.bytes.has_differences());
    // Repeated, late, or too early.
    for (after, version) in [(2, 3), (1, 2), (2, 4), (4, 5)] {
        assert_eq!(scene.extend(owner, (after, version), "+x").await.expect("not written"), 3);
    }
    assert_eq!(scene.extend(owner, (3, 7), "+seven").await.expect("added"), 7);
    let state = scene.read().await.expect("there").state;
    assert_eq!((state.version, &*state.bytes.to_bytes()), (7, &b"two+three+seven"[..]));
    assert_eq!(scene.save(owner, 8, "eight").await.expect("saved"), 8);
    let state = scene.read().await.expect("there").state;
    assert_eq!(state, State { version: 8, bytes: (*b"eight").into() });
    let appended = scene.append(owner, 1, 1, "a").await;
    appended.expect("appended to a session whose state had differences");
}

/// The whole state with its differences reaches the next owner, who adds to it.
pub async fn a_claimant_adds_to_a_state_with_differences(world: &dyn World) {
    let (scene, old) = Scene::owned(world).await;
    scene.extend(old, (1, 2), "+two").await.expect("added");
    let new = heir(old);
    let state = scene.claim(old.token, new).await.expect("claimed").record.state;
    assert_eq!((state.version, &*state.bytes.to_bytes()), (2, &b"one+two"[..]));
    assert!(state.bytes.has_differences());
    fenced_by(new, scene.extend(old, (2, 3), "+late").await);
    assert_eq!(scene.extend(new, (2, 3), "+three").await.expect("added"), 3);
    assert_eq!(*scene.read().await.expect("there").state.bytes.to_bytes(), *b"one+two+three");
    scene.release(new).await.expect("released");
    assert!(matches!(scene.extend(new, (3, 4), "+x").await, Err(Error::Released)));
    assert_eq!(*scene.read().await.expect("there").state.bytes.to_bytes(), *b"one+two+three");
}

/// A write that timed out is executed after the one that followed it.
pub async fn a_late_state_does_not_replace_a_newer_one(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    scene.save(owner, 3, "three").await.expect("saved");
    assert_eq!(scene.save(owner, 2, "two").await.expect("not written"), 3);
    assert_eq!(*scene.read().await.expect("there").state.bytes.to_bytes(), *b"three");
}

/// A deposed owner is refused also with a higher version.
pub async fn a_deposed_owner_saves_nothing(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    fenced_by(new, scene.save(old, 99, "ninety-nine").await);
    assert_eq!(*scene.read().await.expect("there").state.bytes.to_bytes(), *b"one");
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
