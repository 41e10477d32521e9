//! Entries for the log and states for the record: in which order they are written, and how often.

use super::*;

fn state(version: u64) -> State {
    State { version, bytes: [].into() }
}

#[test]
fn what_comes_while_one_batch_is_under_way_goes_with_the_next() {
    let mut story = story();
    story.does("nothing");
    story.say("a");
    story.does("append 1a");
    story.say("b");
    story.say("c");
    story.does("nothing");
    story.completed(appended(1), [Outcome::Through(1)]);
    story.does("append 2bc");
    story.completed(appended(3), [Outcome::Through(3)]);
    story.does("nothing");
}

#[test]
fn what_has_an_unknown_outcome_is_sent_again_whole_and_more_and_more_rarely() {
    let mut story = story();
    story.say("a");
    story.say("b");
    story.does("append 1ab");
    story.completed(OpResult::Appended(Err(unavailable())), []);
    story.say("c");
    story.does("nothing");
    assert_eq!(story.ownership.wake_at(), Some(50));
    story.at(50).does("append 1abc");
    story.completed(OpResult::Appended(Err(unavailable())), []);
    assert_eq!(story.ownership.wake_at(), Some(150));
    story.at(150).does("append 1abc");
    story.completed(appended(3), [Outcome::Through(3)]);
    assert_eq!(story.ownership.wake_at(), Some(100_150));
}

#[test]
fn what_is_below_the_floor_is_not_sent_and_nobody_waits_for_it() {
    let mut story = story();
    story.say("a");
    story.say("b");
    story.ownership.push(3, 3, Vec::new());
    story.does("append 3");
    story.completed(OpResult::Appended(Ok(Appended { through: None })), [Outcome::Through(2)]);
    story.does("nothing");
}

#[test]
fn what_falls_below_the_floor_while_a_save_is_refused_is_not_kept() {
    let mut story = story();
    story.ownership.save(state(1));
    story.does("save 1");
    story.completed(OpResult::Saved(Err(unavailable())), []);
    for number in 1..=100 {
        story.ownership.push(number, number, vec![Bytes::from_static(b"x")]);
    }
    assert_eq!(story.ownership.unheld.len(), 1);
    story.ownership.push(101, 101, Vec::new());
    assert_eq!(story.ownership.unheld.len(), 0);
    story.at(50).does("append 101");
    story.completed(OpResult::Appended(Ok(Appended { through: None })), [Outcome::Through(100)]);
    story.does("save 1");
}

/// The log does not have the floor yet: the number of an entry that was told to be held there
/// would be given again by the next owner.
#[test]
fn what_falls_below_the_floor_during_an_append_is_held_with_the_next() {
    let mut story = story();
    story.say("a");
    story.does("append 1a");
    story.say("b");
    story.say("c");
    story.ownership.push(4, 3, Vec::new());
    story.completed(appended(1), [Outcome::Through(1)]);
    story.does("append 3c");
    story.completed(appended(3), [Outcome::Through(3)]);
}

#[test]
fn an_idle_session_is_refreshed_well_before_it_expires() {
    let mut story = story();
    assert_eq!(story.ownership.wake_at(), Some(100_000));
    story.at(99_999).does("nothing");
    story.at(100_000).does("append 1");
    story.completed(OpResult::Appended(Ok(Appended { through: None })), []);
    assert_eq!(story.ownership.wake_at(), Some(200_000));
}

#[test]
fn a_busy_session_is_refreshed_as_often_as_an_idle_one_and_not_with_each_append() {
    let mut story = story();
    for (now, prolongs) in [(99_999, false), (100_000, true), (199_999, false), (200_000, true)] {
        let number = story.at(now).appends("a", prolongs);
        story.completed(appended(number), [Outcome::Through(number)]);
    }
    story.at(300_000).appends("b", true);
    story.completed(OpResult::Appended(Err(unavailable())), []);
    // Nobody knows whether it was done.
    story.at(300_050).appends("c", true);
    story.completed(appended(6), [Outcome::Through(6)]);
    story.at(300_051).appends("d", false);
}

#[test]
fn only_a_newer_state_is_saved() {
    let mut story = story();
    story.ownership.save(State { version: 2, bytes: [].into() });
    story.does("save 2");
    story.ownership.save(State { version: 1, bytes: [].into() });
    story.completed(OpResult::Saved(Ok(2)), [Outcome::Saved(2)]);
    story.does("nothing");
}

/// The next owner must not find in the log what its record does not know: that the client was
/// asked for a call, or that a request was answered that changed the session.
#[test]
fn an_entry_follows_the_state_that_changed_with_it() {
    let mut story = story();
    story.ownership.save(state(1));
    story.say("a");
    story.does("save 1");
    story.completed(OpResult::Saved(Err(unavailable())), []);
    story.at(50).does("save 1");
    story.completed(OpResult::Saved(Ok(1)), [Outcome::Saved(1)]);
    story.does("append 1a");
    story.completed(appended(1), [Outcome::Through(1)]);
    story.does("nothing");
}

#[test]
fn a_state_that_changes_all_the_time_does_not_keep_entries_from_the_log() {
    let mut story = story();
    story.ownership.save(state(1));
    story.say("a");
    story.does("save 1");
    story.ownership.save(state(2));
    story.say("b");
    story.completed(OpResult::Saved(Ok(1)), [Outcome::Saved(1)]);
    // What was there before the second change, and no more.
    story.does("append 1a");
    story.completed(appended(1), [Outcome::Through(1)]);
    story.does("save 2");
    story.ownership.save(state(3));
    story.completed(OpResult::Saved(Ok(2)), [Outcome::Saved(2)]);
    story.does("append 2b");
    story.completed(appended(2), [Outcome::Through(2)]);
    story.does("save 3");
}
