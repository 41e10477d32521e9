//! A log has no duplicate, hole or disorder after retries, losses and late batches.

use futures_util::future::join_all;

use super::*;

/// Batches arrive in order, each once.
pub async fn entries_are_read_in_the_order_of_their_numbers(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a").await, 1);
    through(scene.append(owner, 2, 1, "b c").await, 3);
    scene.holds(1, "a b c").await;
}

/// An owner sends all unacknowledged entries again.
pub async fn entries_that_are_held_already_are_dropped(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a b").await, 2);
    through(scene.append(owner, 1, 1, "a b").await, 2);
    through(scene.append(owner, 1, 1, "a b c").await, 3);
    through(scene.append(owner, 3, 1, "c d").await, 4);
    scene.holds(1, "a b c d").await;
}

/// A batch that timed out is executed seconds later, on an old connection.
pub async fn a_late_duplicate_of_any_batch_changes_nothing(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    let sent = [(1, 1, "a b"), (3, 1, "c"), (4, 3, "d e"), (6, 4, "f")];
    for (first, floor, words) in sent {
        scene.append(owner, first, floor, words).await.expect("taken");
    }
    for (first, floor, words) in sent {
        scene.append(owner, first, floor, words).await.expect("a repetition succeeds");
        scene.holds(4, "d e f").await;
    }
}

/// The error has the number after which the owner sends again.
pub async fn a_hole_is_refused_and_the_error_names_the_last_number(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a b").await, 2);
    hole_after(Some(2), scene.append(owner, 4, 1, "d").await);
    hole_after(Some(2), scene.append(owner, 4, 2, "d e").await);
    scene.holds(1, "a b").await;
}

/// Batches may arrive in any order.
pub async fn batches_that_arrived_out_of_order_are_completed_by_sending_them_again(
    world: &dyn World,
) {
    let (scene, owner) = Scene::owned(world).await;
    hole_after(None, scene.append(owner, 3, 1, "c").await);
    hole_after(None, scene.append(owner, 2, 1, "b").await);
    through(scene.append(owner, 1, 1, "a").await, 1);
    hole_after(Some(1), scene.append(owner, 3, 1, "c").await);
    through(scene.append(owner, 1, 1, "a b c").await, 3);
    through(scene.append(owner, 2, 1, "b").await, 2);
    scene.holds(1, "a b c").await;
}

/// Otherwise replayable entries would be lost without an error.
pub async fn an_empty_log_takes_only_what_begins_at_the_floor(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    hole_after(None, scene.append(owner, 6, 5, "f").await);
    scene.holds(0, "").await;
    through(scene.append(owner, 5, 5, "e f").await, 6);
    scene.holds(5, "e f").await;
}

/// The log has no replayable entry that the batch could continue.
pub async fn a_log_that_ends_below_the_floor_is_replaced(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a b").await, 2);
    hole_after(Some(2), scene.append(owner, 6, 5, "f").await);
    scene.holds(1, "a b").await;
    through(scene.append(owner, 5, 5, "e f").await, 6);
    scene.holds(5, "e f").await;
}

/// The floor bounds a log.
pub async fn entries_below_the_floor_are_trimmed_from_log_and_batch(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a b c").await, 3);
    through(scene.append(owner, 4, 3, "d").await, 4);
    scene.holds(3, "c d").await;
    through(scene.append(owner, 5, 6, "e f").await, 6);
    scene.holds(6, "f").await;
}

/// No entry is replayable any more.
pub async fn a_floor_above_everything_empties_the_log(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a b").await, 2);
    through(scene.append(owner, 3, 4, "c").await, 3);
    scene.holds(0, "").await;
    through(scene.append(owner, 4, 4, "d").await, 4);
    scene.holds(4, "d").await;
}

/// A second trim removes no further entries, and a late one restores none.
pub async fn a_late_batch_with_a_lower_floor_restores_nothing(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a b c").await, 3);
    for _ in 0..2 {
        through(scene.append(owner, 4, 3, "d").await, 4);
        scene.holds(3, "c d").await;
    }
    through(scene.append(owner, 1, 1, "a b c").await, 3);
    through(scene.append(owner, 4, 2, "d").await, 4);
    scene.holds(3, "c d").await;
}

/// A failover may have lost acknowledged entries, so an owner checks periodically.
pub async fn an_empty_batch_notices_a_lost_tail(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    hole_after(None, scene.append(owner, 4, 1, "").await);
    through(scene.append(owner, 1, 1, "a b").await, 2);
    through(scene.append(owner, 3, 1, "").await, 2);
    hole_after(Some(2), scene.append(owner, 4, 1, "").await);
    hole_after(Some(2), scene.append(owner, 4, 3, "").await);
    scene.holds(1, "a b").await;
}

/// A session without new events still trims the entries that no client can ask for.
pub async fn an_empty_batch_trims_and_adds_nothing(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "a b c").await, 3);
    through(scene.append(owner, 4, 3, "").await, 3);
    scene.holds(3, "c").await;
    through(scene.append(owner, 4, 4, "").await, 3);
    scene.holds(0, "").await;
    through(scene.append(owner, 4, 4, "d").await, 4);
    scene.holds(4, "d").await;
}

/// The owner of a session without streams also checks that it still owns the session.
pub async fn an_empty_batch_is_taken_where_nothing_is_replayable(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    through(scene.append(owner, 1, 1, "").await, 0);
    through(scene.append(owner, 9, 9, "").await, 8);
    let none = scene.append(owner, 0, 0, "").await.expect("taken");
    assert_eq!(none.through, None);
    scene.holds(0, "").await;
}

/// The token is compared at every batch, also at an empty one.
pub async fn a_deposed_owner_appends_nothing_and_gets_the_name_of_the_owner(world: &dyn World) {
    let (scene, old, new) = Scene::claimed(world).await;
    fenced_by(new, scene.append(old, 1, 1, "x").await);
    fenced_by(new, scene.append(old, 1, 1, "").await);
    scene.holds(0, "").await;
    scene.release(new).await.expect("released");
    fenced_by(new, scene.append(old, 1, 1, "x").await);
    scene.holds(0, "").await;
}

/// A refused batch of one session does not affect those of others.
pub async fn each_of_many_batches_is_answered_for_itself(world: &dyn World) {
    let (one, mine) = Scene::owned(world).await;
    let (other, old, new) = Scene::claimed(world).await;
    let unknown = Scene::new(world);
    let batches = [
        one.batch(mine, 1, 1, "a"),
        other.batch(old, 1, 1, "x"),
        unknown.batch(mine, 1, 1, "y"),
        one.batch(mine, 4, 1, "d"),
        one.batch(mine, 2, 1, "b"),
        other.batch(new, 1, 1, "z"),
    ];
    let store = world.store();
    let appends = batches.into_iter().map(|batch| store.append(batch));
    let mut answers = join_all(appends).await.into_iter();
    let mut next = || answers.next().expect("an answer for each");
    through(next(), 1);
    fenced_by(new, next());
    missing(next());
    hole_after(Some(1), next());
    through(next(), 2);
    through(next(), 1);
    assert!(answers.next().is_none());
    one.holds(1, "a b").await;
    other.holds(1, "z").await;
}

/// The store never decodes an entry, and an entry may be empty.
pub async fn payloads_are_kept_byte_for_byte(world: &dyn World) {
    let (scene, owner) = Scene::owned(world).await;
    let every_byte: Bytes = (0..=u8::MAX).collect::<Vec<_>>().into();
    let large = Bytes::from(vec![b'x'; 1 << 20]);
    let entries = vec![every_byte, Bytes::new(), large];
    let batch = Batch { entries: entries.clone(), ..scene.batch(owner, 1, 1, "") };
    through(world.store().append(batch).await, 3);
    let held = world.store().read_log(&scene.session).await.expect("read");
    assert!(held == (1..).zip(entries).collect::<Vec<_>>());
}
