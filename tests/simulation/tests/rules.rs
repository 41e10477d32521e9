//! Every rule of the protocol is needed: without it, a promise is broken.
//!
//! A witness is found with
//! `RULES=one,two+three cargo test --profile simulation -p simulation --features mutants --test seeds explore_rules -- --ignored --nocapture`.

use std::collections::BTreeSet;

use simulation::Rules;

/// The runs in which a missing rule breaks a promise.
#[derive(Clone, Copy, Debug)]
enum Witness {
    /// In the case whose name begins so, under one of the first [`CASE_SEEDS`] seeds.
    Case(&'static str),
    /// In the plan of one of the first [`SEEDS`] seeds.
    Seeds,
}

use Witness::{Case, Seeds};

/// How many seeds are tried for a case.
const CASE_SEEDS: u64 = 40;

/// How many seeds are tried for a rule without a case.
const SEEDS: u64 = 5_000;

/// The rules, each with its witness. Several rules in one row hide each other: a promise is broken
/// only without all of them.
const SHOWN: &[(&[&str], Witness)] = &[
    (&["told_primary"], Seeds),
    (&["acts_by_lease"], Case("a stopped owner wakes beside its heir")),
    (&["acts_by_lease"], Seeds),
    (&["lease_generations"], Case("an owner that lapsed and came back answers")),
    (&["lease_generations"], Seeds),
    (&["self_claims"], Case("a claim is done and its answer is lost")),
    (&["self_claims"], Seeds),
    (&["marks_again"], Case("what was handed to a link is not handed")),
    (&["marks_again"], Seeds),
    (&["remembers_ends"], Case("an ended session does not come back")),
    (&["remembers_ends"], Seeds),
    (&["ownership.claims_after_lapse"], Case("an owner that lapsed and came back answers")),
    (&["ownership.claims_after_lapse"], Seeds),
    (&["ownership.reasserts_after_failover"], Seeds),
    (&["ownership.reasserts_missing"], Seeds),
    (&["waits_out_stabilisation"], Seeds),
    (&["waits_out_stabilisation", "waits_out_leases"], Seeds),
    (
        &["claims_by_lease", "lease_generations"],
        Case("a claim is answered when the claimant's lease"),
    ),
    (&["one_claim", "self_claims"], Case("what was handed to a link is not handed")),
    (&["one_claim", "self_claims"], Seeds),
    (&["ends_before_word"], Case("an owner dies that was asked for the end")),
    (&["ownership.stops_when_deposed"], Case("an owner is stopped with a call in its hands")),
    (&["ownership.stops_when_deposed"], Seeds),
    (&["ownership.reasserts_fallen_back"], Case("a failover shows a dead owner before")),
    (&["ownership.reasserts_fallen_back"], Seeds),
    (&["unknown_by_lease"], Case("a node that stayed with a deposed primary")),
    (&["links_save"], Case("a node cannot renew and one peer cannot reach it")),
    (&["links_save"], Seeds),
    (&["leaves_lapsed"], Case("what was brought to a node waits there")),
    (&["renews_on_loss"], Case("whoever had a link to a killed process")),
    (&["claims_own_draining"], Case("a node drains for long whose claim")),
    (&["numbers_attachments"], Case("a former owner says that it has lost")),
    (
        &["waits_out_stabilisation", "ownership.releases_when_stable"],
        Case("who was cut off with a release under way"),
    ),
    (&["ownership.refreshes"], Case("a stream is silent for longer than")),
    (&["ownership.refreshes"], Case("a session is idle for longer than")),
    (&["ownership.saves_before_it_appends"], Case("a client is asked on its GET stream, and its")),
    (&["ownership.acts_when_sure"], Case("an owner whose claim was forgotten cannot write anew")),
];

/// Rules of the ownership that the tests of the crate `ownership` show to be needed, whether or not
/// the simulation does so: `each_rule_is_missed_by_somebody` fails if one is not, and also
/// `an_owner_that_was_replaced_in_a_failover_does_not_replace_the_other_in_the_next`.
const SHOWN_BY_OWNERSHIP: &[&str] = &[
    "ownership.claims_after_lapse",
    "ownership.reasserts_after_failover",
    "ownership.reasserts_missing",
    "ownership.ends_missing_where_claimable",
    "ownership.asks_where_rivalled",
    "ownership.knows_late_claims",
    "ownership.resends_whole",
    "ownership.stops_when_deposed",
    "ownership.release_is_last",
    "ownership.release_waits",
    "ownership.claims_late_in_stabilisation",
    "ownership.reasserts_end",
];

impl Witness {
    /// A run of each of its seeds, which returns the broken promise, if there is one.
    fn runs(self) -> Vec<Box<dyn Fn(Rules) -> Option<String>>> {
        match self {
            Seeds => (0..SEEDS)
                .map(|seed| boxed(move |rules| simulation::run_seed(seed, rules, false).broken))
                .collect(),
            Case(name) => {
                let cases = simulation::cases();
                let case = cases.into_iter().find(|case| case.name.starts_with(name));
                let plan = case.unwrap_or_else(|| panic!("no case is named {name}")).plan;
                let run = |seed| {
                    let plan = plan.clone();
                    boxed(move |rules| simulation::run(seed, plan.clone(), rules, false).broken)
                };
                (0..CASE_SEEDS).map(run).collect()
            }
        }
    }
}

fn boxed(run: impl Fn(Rules) -> Option<String> + 'static) -> Box<dyn Fn(Rules) -> Option<String>> {
    Box::new(run)
}

/// Whether this run breaks a promise without these rules, but not if only one of several is
/// missing.
fn misses(run: &dyn Fn(Rules) -> Option<String>, names: &[&str]) -> bool {
    let alone = || names.iter().all(|name| run(Rules::without(&[name])).is_none());
    run(Rules::without(names)).is_some()
        && run(Rules::default()).is_none()
        && (names.len() == 1 || alone())
}

#[test]
fn without_a_rule_its_witness_sees_a_promise_broken_and_with_it_none() {
    let is_shown = |(names, witness): &&(&[&str], Witness)| {
        witness.runs().iter().any(|run| misses(run, names))
    };
    let wrong: Vec<_> = SHOWN.iter().filter(|shown| !is_shown(shown)).collect();
    assert!(wrong.is_empty(), "not missed: {wrong:#?}");
}

#[test]
fn every_rule_has_a_switch_of_its_own() {
    // The derived format names every rule.
    let all = format!("{:?}", Rules::default());
    assert_eq!(all.matches(": true").count(), Rules::names().len(), "{all}");
    let mut seen = BTreeSet::new();
    for name in Rules::names() {
        let without = format!("{:?}", Rules::without(&[name]));
        let field = name.trim_start_matches("ownership.");
        assert!(without.contains(&format!("{field}: false")), "{name} switches another rule off");
        assert_eq!(without.matches(": false").count(), 1, "{name} switches more than one rule off");
        assert!(seen.insert(without), "{name} switches the same rule off as another name");
    }
}

#[test]
fn every_rule_is_shown_to_be_needed() {
    let shown = SHOWN.iter().flat_map(|(names, _)| names.iter().copied());
    let shown: BTreeSet<&str> = shown.chain(SHOWN_BY_OWNERSHIP.iter().copied()).collect();
    let each: BTreeSet<&str> = Rules::names().into_iter().collect();
    let missing: Vec<_> = each.difference(&shown).collect();
    assert!(missing.is_empty(), "rules without a witness: {missing:?}");
    let strange: Vec<_> = shown.difference(&each).collect();
    assert!(strange.is_empty(), "unknown rules: {strange:?}");
}
