//! Each rule of ownership is needed: without it, an invariant is violated.

use std::panic;

use ownership::{Rule, RuleSet};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::live_through;
use crate::steps::{Step, steps};

/// Enough schedules for each of the rules.
const LIVES: usize = 4_000;

/// The rules whose absence these schedules detect. The test `rules` of the simulation detects the
/// others.
const MISSED: &[Rule] = &[
    Rule::ClaimsAfterLapse,
    Rule::ReassertsAfterFailover,
    Rule::ReassertsMissing,
    Rule::EndsMissingWhereClaimable,
    Rule::KnowsLateClaims,
    Rule::ResendsWhole,
    Rule::StopsWhenDeposed,
    Rule::ReleaseIsLast,
    Rule::ReleaseWaits,
    Rule::ClaimsLateInStabilisation,
    Rule::ReassertsEnd,
];

/// Runs a schedule with these rules. Returns the violated invariant, if any.
fn broken_promise(rules: RuleSet, steps: Vec<Step>) -> Option<String> {
    rules.select();
    let lived = panic::catch_unwind(|| live_through(steps));
    RuleSet::default().select();
    let why = lived.err()?;
    Some(why.downcast_ref::<String>().cloned().unwrap_or_default())
}

/// Panics if this schedule violates no invariant without the rule.
pub(crate) fn assert_missed(rule: Rule, steps: &[Step]) {
    let rules = RuleSet::default().without(rule);
    assert!(broken_promise(rules, steps.to_vec()).is_some(), "{rule:?} is not needed");
}

/// The first of a fixed sequence of schedules that violates an invariant with these rules.
fn first_broken(rules: RuleSet, lives: usize) -> Option<(usize, String)> {
    let mut runner = TestRunner::deterministic();
    (0..lives).find_map(|life| {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        Some((life, broken_promise(rules, steps)?))
    })
}

/// Without a rule, an invariant is violated.
#[test]
fn each_rule_is_missed_by_somebody() {
    let is_missed =
        |rule: &&Rule| first_broken(RuleSet::default().without(**rule), LIVES).is_some();
    let needless: Vec<_> = MISSED.iter().filter(|rule| !is_missed(rule)).collect();
    assert!(needless.is_empty(), "not needed: {needless:?}");
    assert_eq!(first_broken(RuleSet::default(), LIVES), None);
}
