//! Entries for the log and states for the record: in which order they are written, and how often.

use super::*;

#[test]
fn entries_that_arrive_while_a_batch_is_in_flight_are_in_the_next_one() {
    let mut fixture = fixture();
    fixture.does("nothing");
    fixture.say("a");
    fixture.does("append 1a");
    fixture.say("b");
    fixture.say("c");
    fixture.does("nothing");
    fixture.completed(appended(1), [Outcome::Through(1)]);
    fixture.does("append 2bc");
    fixture.completed(appended(3), [Outcome::Through(3)]);
    fixture.does("nothing");
}

#[test]
fn what_has_an_unknown_outcome_is_sent_again_whole_and_more_and_more_rarely() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.say("b");
    fixture.does("append 1ab");
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    fixture.say("c");
    fixture.does("nothing");
    assert_eq!(fixture.ownership.wake_at(), Some(50));
    fixture.at(50).does("append 1abc");
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    assert_eq!(fixture.ownership.wake_at(), Some(150));
    fixture.at(150).does("append 1abc");
    fixture.completed(appended(3), [Outcome::Through(3)]);
    assert_eq!(fixture.ownership.wake_at(), Some(100_150));
}

#[test]
fn entries_below_the_floor_are_not_sent_and_not_waited_for() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.say("b");
    fixture.ownership.push_entries(3, 3, Vec::new());
    fixture.does("append 3");
    fixture.completed(OpResult::Appended(Ok(Appended { through: None })), [Outcome::Through(2)]);
    fixture.does("nothing");
}

#[test]
fn what_falls_below_the_floor_while_a_save_is_refused_is_not_kept() {
    let mut fixture = fixture();
    fixture.saves(1);
    fixture.does("save 1 1");
    fixture.completed(OpResult::Saved(Err(unavailable())), []);
    for number in 1..=100 {
        fixture.ownership.push_entries(number, number, vec![Bytes::from_static(b"x")]);
    }
    assert_eq!(fixture.ownership.log_tail.len(), 1);
    fixture.ownership.push_entries(101, 101, Vec::new());
    assert_eq!(fixture.ownership.log_tail.len(), 0);
    fixture.at(50).does("append 101");
    fixture.completed(OpResult::Appended(Ok(Appended { through: None })), [Outcome::Through(100)]);
    fixture.does("save 1 1");
}

/// The log does not have the floor yet: if an entry of this number were acknowledged, the next
/// owner would use the number again.
#[test]
fn what_falls_below_the_floor_during_an_append_is_held_with_the_next() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.does("append 1a");
    fixture.say("b");
    fixture.say("c");
    fixture.ownership.push_entries(4, 3, Vec::new());
    fixture.completed(appended(1), [Outcome::Through(1)]);
    fixture.does("append 3c");
    fixture.completed(appended(3), [Outcome::Through(3)]);
}

#[test]
fn an_idle_session_is_refreshed_well_before_it_expires() {
    let mut fixture = fixture();
    assert_eq!(fixture.ownership.wake_at(), Some(100_000));
    fixture.at(99_999).does("nothing");
    fixture.at(100_000).does("append 1");
    fixture.completed(OpResult::Appended(Ok(Appended { through: None })), []);
    assert_eq!(fixture.ownership.wake_at(), Some(200_000));
}

#[test]
fn a_busy_session_is_refreshed_as_often_as_an_idle_one_and_not_with_each_append() {
    let mut fixture = fixture();
    for (now, prolongs) in [(99_999, false), (100_000, true), (199_999, false), (200_000, true)] {
        let number = fixture.at(now).appends("a", prolongs);
        fixture.completed(appended(number), [Outcome::Through(number)]);
    }
    fixture.at(300_000).appends("b", true);
    fixture.completed(OpResult::Appended(Err(unavailable())), []);
    // The outcome is not known.
    fixture.at(300_050).appends("c", true);
    fixture.completed(appended(6), [Outcome::Through(6)]);
    fixture.at(300_051).appends("d", false);
}

#[test]
fn only_a_newer_state_is_saved() {
    let mut fixture = fixture();
    fixture.saves(2);
    fixture.does("save 2 2");
    fixture.saves(1);
    fixture.completed(OpResult::Saved(Ok(2)), [Outcome::Saved(2)]);
    fixture.does("nothing");
}

/// The next owner must not find in the log what its record lacks: that the client received a
/// server request for a call, or that a request was answered that changed the session.
#[test]
fn an_entry_follows_the_state_that_changed_with_it() {
    let mut fixture = fixture();
    fixture.saves(1);
    fixture.say("a");
    fixture.does("save 1 1");
    fixture.completed(OpResult::Saved(Err(unavailable())), []);
    fixture.at(50).does("save 1 1");
    fixture.completed(OpResult::Saved(Ok(1)), [Outcome::Saved(1)]);
    fixture.does("append 1a");
    fixture.completed(appended(1), [Outcome::Through(1)]);
    fixture.does("nothing");
}

#[test]
fn a_state_that_changes_all_the_time_does_not_keep_entries_from_the_log() {
    let mut fixture = fixture();
    fixture.saves(1);
    fixture.say("a");
    fixture.does("save 1 1");
    fixture.saves(2);
    fixture.say("b");
    fixture.completed(OpResult::Saved(Ok(1)), [Outcome::Saved(1)]);
    // The state before the second change.
    fixture.does("append 1a");
    fixture.completed(appended(1), [Outcome::Through(1)]);
    fixture.does("save 2 2");
    fixture.saves(3);
    fixture.completed(OpResult::Saved(Ok(2)), [Outcome::Saved(2)]);
    fixture.does("append 2b");
    fixture.completed(appended(2), [Outcome::Through(2)]);
    fixture.does("save 3 3");
}

#[test]
fn changes_that_follow_the_saved_state_are_added_to_it() {
    let mut fixture = fixture();
    fixture.saves(1);
    fixture.changes(2, "b");
    // The store's record has no state yet.
    fixture.does("save 2 1b");
    fixture.completed(OpResult::Saved(Ok(2)), [Outcome::Saved(2)]);
    fixture.changes(3, "c");
    fixture.does("extend 2 to 3 c");
    fixture.changes(4, "d");
    fixture.changes(5, "e");
    fixture.completed(OpResult::Saved(Ok(3)), [Outcome::Saved(3)]);
    fixture.does("extend 3 to 5 de");
    fixture.completed(OpResult::Saved(Err(unavailable())), []);
    fixture.at(50).does("extend 3 to 5 de");
    fixture.completed(OpResult::Saved(Ok(5)), [Outcome::Saved(5)]);
    fixture.saves(6);
    fixture.does("save 6 6");
    fixture.changes(7, "g");
    fixture.completed(OpResult::Saved(Ok(6)), [Outcome::Saved(6)]);
    fixture.does("extend 6 to 7 g");
}

/// The answer to an extension was lost, and the next one follows an older version; or a failover
/// lost the last versions.
#[test]
fn a_state_that_cannot_be_added_to_is_saved_whole_before_the_entries_that_follow() {
    for held in [2, 4] {
        let mut fixture = fixture();
        fixture.saves(1);
        fixture.does("save 1 1");
        fixture.completed(OpResult::Saved(Ok(1)), [Outcome::Saved(1)]);
        fixture.changes(2, "b");
        fixture.changes(3, "c");
        fixture.does("extend 1 to 3 bc");
        fixture.completed(OpResult::Saved(Err(unavailable())), []);
        fixture.changes(4, "d");
        fixture.changes(5, "e");
        fixture.say("x");
        fixture.at(50).does("extend 1 to 5 bcde");
        fixture.completed(OpResult::Saved(Ok(held)), []);
        fixture.does("save 5 1bcde");
        fixture.completed(OpResult::Saved(Ok(5)), [Outcome::Saved(5)]);
        fixture.does("append 1x");
        fixture.completed(appended(1), [Outcome::Through(1)]);
        fixture.changes(6, "f");
        fixture.does("extend 5 to 6 f");
    }
}

/// The differences in a record that was claimed belong to no versions that this owner knows.
#[test]
fn a_claimed_state_with_differences_is_added_to_as_a_whole() {
    let mut record = record();
    record.state = crate::State { version: 3, bytes: b"1"[..].into() };
    record.state.bytes.push((*b"23").into());
    let mut fixture = fixture_of(record);
    fixture.changes(4, "4");
    fixture.does("extend 3 to 4 4");
    fixture.completed(OpResult::Saved(Ok(2)), []);
    fixture.does("save 4 1234");
}
