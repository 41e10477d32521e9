//! Owners of one session, a store that forgets, and a network that loses, repeats and delays
//! their commands. In every schedule at most one owner acts, the log has no hole and no foreign
//! entry, acknowledged entries are in it, and when nothing goes wrong any more all is whole.

mod steps;
mod world;

use std::panic;

use ownership::machine::Rules;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::steps::{Fate, Step, steps};
use crate::world::World;

/// Panics where what is promised does not hold.
fn live_through(rules: Rules, steps: Vec<Step>) {
    let mut world = World::new(rules);
    for step in steps {
        world.take(step);
        world.check();
    }
    world.calm_down();
}

proptest! {
    #[test]
    fn whatever_happens_one_owner_at_most_acts_and_nothing_that_is_held_is_lost(steps in steps()) {
        live_through(Rules::default(), steps);
    }
}

/// Found by lives: the repeated release wrote the session anew, as the store knew nothing of it.
#[test]
fn a_session_that_the_next_owner_ended_is_not_back_by_the_repeated_release_of_the_former() {
    let steps = [
        Step::Release(0),
        Step::Act(0, Fate::Unanswered),
        Step::Take(1, Fate::Done),
        Step::End(1),
        Step::Act(1, Fate::Done),
    ];
    live_through(Rules::default(), steps.to_vec());
}

/// Found by lives: it wrote the session anew first, as it had been before the former failover.
#[test]
fn an_owner_that_was_replaced_in_a_failover_does_not_replace_the_other_in_the_next() {
    let steps = [
        Step::Lapse(0),
        Step::Take(2, Fate::Done),
        Step::Renew(0),
        Step::Lapse(2),
        Step::Failover(1, 0),
        Step::Renew(2),
        Step::Failover(2, 2),
    ];
    live_through(Rules::default(), steps.to_vec());
    let rules = Rules { asks_where_rivalled: false, ..Rules::default() };
    assert!(panic::catch_unwind(|| live_through(rules, steps.to_vec())).is_err());
}

/// Found by lives: it claimed under the token that the other knew as one before its own.
#[test]
fn a_claim_that_a_failover_may_have_forgotten_is_not_sent_again_under_its_token() {
    let steps = [
        Step::Lapse(0),
        Step::Renew(0),
        Step::Act(0, Fate::Unanswered),
        Step::Lapse(0),
        Step::Take(1, Fate::Done),
        Step::Lapse(1),
        Step::Renew(0),
        Step::Failover(2, 0),
    ];
    live_through(Rules::default(), steps.to_vec());
}

/// What of this many lives, always the same ones, goes wrong first by these rules.
fn goes_wrong(rules: Rules, lives: usize) -> Option<(usize, String)> {
    let mut runner = TestRunner::deterministic();
    (0..lives).find_map(|life| {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let lived = panic::catch_unwind(|| live_through(rules, steps));
        let why = lived.err()?;
        let why = why.downcast_ref::<String>().cloned();
        Some((life, why.unwrap_or_default()))
    })
}

/// Without a rule, what is promised breaks. Only what the simulator's `tests/tests/rules.rs`
/// shows by itself is left out.
#[test]
fn each_rule_is_missed_by_somebody() {
    let needless: Vec<_> = MISSED
        .iter()
        .filter(|(_, off)| {
            let mut rules = Rules::default();
            off(&mut rules);
            goes_wrong(rules, LIVES).is_none()
        })
        .map(|(name, _)| *name)
        .collect();
    assert!(needless.is_empty(), "nobody misses {needless:?}");
    assert_eq!(goes_wrong(Rules::default(), LIVES), None);
}

/// More than it takes for any of them.
const LIVES: usize = 4_000;

type Off = fn(&mut Rules);

const MISSED: &[(&str, Off)] = &[
    ("claims_after_lapse", |rules| rules.claims_after_lapse = false),
    ("reasserts_after_failover", |rules| rules.reasserts_after_failover = false),
    ("reasserts_missing", |rules| rules.reasserts_missing = false),
    ("ends_missing_where_claimable", |rules| rules.ends_missing_where_claimable = false),
    ("knows_late_claims", |rules| rules.knows_late_claims = false),
    ("resends_whole", |rules| rules.resends_whole = false),
    ("stops_when_deposed", |rules| rules.stops_when_deposed = false),
    ("release_is_last", |rules| rules.release_is_last = false),
    ("release_waits", |rules| rules.release_waits = false),
    ("claims_late_in_stabilisation", |rules| rules.claims_late_in_stabilisation = false),
    ("reasserts_end", |rules| rules.reasserts_end = false),
];
