//! How an owner releases a session, or ends it.

use super::*;

#[test]
fn a_session_is_released_when_all_is_held_saved_and_stable_and_then_nothing_is_done() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.saves(1);
    fixture.ownership.release_session();
    fixture.does("save 1 1");
    fixture.completed(OpResult::Saved(Ok(1)), [Outcome::Saved(1)]);
    fixture.does("append 1a");
    fixture.completed(appended(1), [Outcome::Through(1)]);
    fixture.snapshot.stabilisation = Stabilisation::Second;
    fixture.does("nothing");
    assert!(fixture.may_act());
    fixture.snapshot.stabilisation = Stabilisation::Done;
    fixture.at(100).does("release 3");
    assert!(!fixture.may_act());
    fixture.completed(OpResult::Done(Err(unavailable())), []);
    // In each case this operation alone is repeated.
    fixture.say("b");
    fixture.snapshot.lease_generation = Some(1);
    fixture.at(100_000).does("release 3");
    fixture.completed(OpResult::Done(Ok(())), [Outcome::Released]);
    fixture.at(1_000_000).does("nothing");
}

#[test]
fn a_release_of_unknown_outcome_is_not_repeated_on_a_log_that_a_failover_cut_short() {
    for was_released in [false, true] {
        let mut fixture = fixture();
        fixture.say("a");
        fixture.does("append 1a");
        fixture.completed(appended(1), [Outcome::Through(1)]);
        fixture.ownership.release_session();
        fixture.does("release 3");
        fixture.completed(OpResult::Done(Err(unavailable())), []);
        fixture.snapshot.failover_generation = 2;
        fixture.at(100).does("reassert 3 Owned 1a");
        assert!(!fixture.may_act());
        if was_released {
            fixture.completed(OpResult::Appended(Err(Error::Released)), [Outcome::Released]);
        } else {
            fixture.completed(appended(1), []);
            fixture.does("release 3");
            fixture.completed(OpResult::Done(Ok(())), [Outcome::Released]);
        }
    }
}

#[test]
fn a_release_of_unknown_outcome_does_not_put_off_what_a_failover_makes_an_owner_write() {
    let mut fixture = fixture();
    fixture.ownership.release_session();
    fixture.does("release 3");
    fixture.completed(OpResult::Done(Err(unavailable())), []);
    fixture.snapshot.failover_generation = 2;
    fixture.snapshot.stabilisation = Stabilisation::First;
    fixture.at(50).does("reassert 3 Owned 1");
    fixture.completed(appended(0), []);
    // It releases the session after other owners had time to re-assert theirs.
    fixture.does("nothing");
    fixture.snapshot.stabilisation = Stabilisation::Done;
    fixture.at(150).does("release 3");
}

#[test]
fn a_release_that_somebody_has_made_use_of_is_over() {
    let mut fixture = fixture();
    fixture.ownership.release_session();
    fixture.does("release 3");
    fixture.completed(OpResult::Done(Err(unavailable())), []);
    fixture.at(50).does("release 3");
    fixture.completed(OpResult::Done(Err(fenced(4, 44, OTHER))), [Outcome::Deposed]);
}

#[test]
fn an_end_is_retried_until_it_is_known_and_reasserted_if_it_was_lost() {
    let mut fixture = fixture();
    fixture.say("a");
    fixture.ownership.end_session();
    fixture.does("end 3");
    fixture.completed(OpResult::Done(Err(unavailable())), []);
    fixture.at(50).does("end 3");
    fixture.completed(OpResult::Done(Err(Error::Missing)), []);
    fixture.at(150).does("reassert 3 Ended 1a");
    fixture.completed(OpResult::Appended(Ok(Appended { through: None })), [Outcome::Ended]);
    fixture.at(1_000_000).does("nothing");
}

#[test]
fn an_end_during_a_reassertion_is_sent_after_it() {
    let mut fixture = fixture();
    fixture.does("nothing");
    fixture.snapshot.failover_generation = 2;
    fixture.does("reassert 3 Owned 1");
    fixture.ownership.end_session();
    fixture.completed(OpResult::Appended(Ok(Appended { through: None })), []);
    fixture.does("end 3");
    fixture.completed(OpResult::Done(Err(Error::Ended)), [Outcome::Ended]);
}
