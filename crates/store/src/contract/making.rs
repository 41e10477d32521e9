//! How a session is created, and how it expires once no owner prolongs it.

use super::*;

/// The store neither normalises nor omits a field.
pub async fn a_record_reads_back_as_it_was_written(world: &dyn World) {
    let (scene, owner) = (Scene::new(world), first());
    let mut record = scene.record(owner);
    record.former = vec![Token { counter: 0, random: u64::MAX }];
    record.initialize = (*b"\x00\xFF\r\n{}").into();
    record.state = State { version: 1 << 40, bytes: (*b"\x00\n\xFF").into() };
    record.revision = "of a later day".into();
    scene.create(record.clone()).await.expect("made");
    assert_eq!(scene.read().await, Some(record));
    scene.holds(0, "").await;
}

/// The answer to the first attempt may have been lost.
pub async fn creating_a_session_again_with_the_same_token_succeeds_and_changes_nothing(
    world: &dyn World,
) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a").await, 1);
    scene.save(owner, 2, "two").await.expect("saved");
    scene.create(scene.record(owner)).await.expect("a repetition succeeds");
    scene.holds(1, "a").await;
    assert_eq!(scene.read().await.expect("there").state.version, 2);
}

/// A session id belongs to the owner that created the session.
pub async fn creating_a_session_with_another_token_is_refused(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    fenced_by(owner, scene.create(scene.record(first())).await);
    scene.is_owned_by(owner).await;
}

/// The session may have another owner by then, or none.
pub async fn creating_a_session_late_does_not_take_it_from_its_next_owner(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    fenced_by(new, scene.create(scene.record(old)).await);
    scene.release(new).await.expect("released");
    fenced_by(new, scene.create(scene.record(old)).await);
    released(scene.create(scene.record(new)).await);
}

/// A late creation does not replace a tombstone.
pub async fn creating_a_session_late_restores_none_that_ended(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    scene.end(owner).await.expect("ended");
    ended(scene.create(scene.record(owner)).await);
    ended(scene.create(scene.record(first())).await);
}

/// Only a creation and a re-assertion write a session that the store does not have.
pub async fn an_unknown_session_reads_as_none_and_takes_nothing(world: &dyn World) {
    let (scene, owner) = (Scene::new(world), first());
    missing(scene.append(owner, 1, 1, "a").await);
    missing(scene.append(owner, 1, 1, "").await);
    missing(scene.claim(owner.token, heir(owner)).await);
    missing(scene.claim_released(owner).await);
    missing(scene.save(owner, 1, "one").await);
    missing(scene.release(owner).await);
    missing(scene.end(owner).await);
    assert_eq!(scene.read().await, None);
    scene.holds(0, "").await;
}

/// An abandoned session expires by itself: no node has to remove it.
pub async fn a_session_is_absent_after_its_time_to_live(world: &dyn World) {
    let (scene, owner) = (Scene::new(world), first());
    world.store().create(&scene.session, scene.record(owner), SHORT).await.expect("made");
    let batch = Batch { ttl: SHORT, ..scene.batch(owner, 1, 1, "a") };
    through(world.store().append(batch).await, 1);
    world.pass(MORE_THAN_SHORT).await;
    assert_eq!(scene.read().await, None);
    scene.holds(0, "").await;
    missing(scene.append(owner, 2, 1, "b").await);
    // The id can be used again, and the new session has an empty log.
    scene.create(scene.record(owner)).await.expect("made anew");
    scene.holds(0, "").await;
}

/// An owner that acts for a session prolongs it: record and log together.
pub async fn claims_and_appends_prolong_a_session(world: &dyn World) {
    let (scene, owner) = (Scene::new(world), first());
    let store = world.store();
    store.create(&scene.session, scene.record(owner), SHORT).await.expect("made");
    let batch = |first, words| Batch { ttl: SHORT, ..scene.batch(owner, first, 1, words) };
    through(store.append(batch(1, "a")).await, 1);
    world.pass(MOST_OF_SHORT).await;
    through(store.append(batch(2, "b")).await, 2);
    world.pass(MOST_OF_SHORT).await;
    through(store.append(batch(3, "")).await, 2);
    world.pass(MOST_OF_SHORT).await;
    scene.holds(1, "a b").await;
    scene.claim(owner.token, heir(owner)).await.expect("claimed for long");
    world.pass(MOST_OF_SHORT).await;
    world.pass(MOST_OF_SHORT).await;
    scene.holds(1, "a b").await;
    assert!(scene.read().await.is_some());
}

/// Most appends of a busy session do not prolong it.
pub async fn an_append_without_the_flag_does_not_prolong_a_session(world: &dyn World) {
    let (scene, owner) = (Scene::new(world), first());
    let store = world.store();
    store.create(&scene.session, scene.record(owner), SHORT).await.expect("made");
    let batch = |number, words| Batch { prolongs: false, ..scene.batch(owner, number, 1, words) };
    through(store.append(batch(1, "a")).await, 1);
    through(store.append(batch(2, "b")).await, 2);
    world.pass(MOST_OF_SHORT).await;
    through(store.append(batch(3, "c")).await, 3);
    through(store.append(batch(4, "")).await, 3);
    scene.holds(1, "a b c").await;
    world.pass(MOST_OF_SHORT).await;
    assert_eq!(scene.read().await, None);
    // A log that expires after its record does not belong to a new session.
    scene.holds(0, "").await;
    scene.create(scene.record(owner)).await.expect("made anew");
    scene.holds(0, "").await;
}

/// A read does not prolong a session.
pub async fn an_answer_to_a_reader_prolongs_nothing(world: &dyn World) {
    let (scene, owner) = (Scene::new(world), first());
    world.store().create(&scene.session, scene.record(owner), SHORT).await.expect("made");
    world.pass(MOST_OF_SHORT).await;
    assert!(scene.read().await.is_some());
    scene.holds(0, "").await;
    world.pass(MOST_OF_SHORT).await;
    assert_eq!(scene.read().await, None);
}
