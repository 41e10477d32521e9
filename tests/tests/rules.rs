//! Every rule of the protocol is needed: switched off, something that is promised breaks.
//!
//! What is not shown so far is named, with the reason. A witness is found with
//! `RULES=one,two+three cargo test -p tests --test simulator explore_rules -- --ignored --nocapture`.

use std::collections::BTreeSet;

use tests::simulation::{self, Rules};

/// Where a rule is missed.
#[derive(Clone, Copy, Debug)]
enum Witness {
    /// In the case whose name begins so, under this seed.
    Case(&'static str, u64),
    /// In what this seed makes go wrong.
    Seed(u64),
}

use Witness::{Case, Seed};

/// Which rules are missed where. Several in one row mask each other: only where all of
/// them are off something breaks.
const SHOWN: &[(&[&str], Witness)] = &[
    (&["told_primary"], Case("an ended session does not come back", 4)),
    (&["acts_by_lease"], Case("a stopped owner wakes beside its heir", 0)),
    (&["acts_by_lease"], Seed(3)),
    (&["epochs"], Case("an owner that lapsed and came back answers", 0)),
    (&["epochs"], Seed(3)),
    (&["self_claims"], Case("a claim is done and its answer is lost", 0)),
    (&["self_claims"], Seed(33)),
    (&["marks_again"], Case("what was handed to a link is not handed", 0)),
    (&["marks_again"], Seed(3)),
    (&["remembers_ends"], Case("an ended session does not come back", 0)),
    (&["tenure.claims_after_lapse"], Case("an owner that lapsed and came back answers", 0)),
    (&["tenure.claims_after_lapse"], Seed(3)),
    (&["tenure.reasserts_missing"], Seed(5)),
    (&["settles"], Seed(144)),
    (&["settles", "waits_out_leases"], Case("a replica whose clock is ahead shows", 3)),
    (&["claims_by_lease", "epochs"], Case("a claim is answered when the claimant's lease", 0)),
    (&["one_claim", "self_claims"], Case("a failover forgets a claim, and the next", 1)),
    (&["one_claim", "self_claims"], Seed(1)),
    (&["ends_before_word"], Seed(297)),
    (&["renews_on_loss"], Seed(239)),
    (&["tenure.resends_whole"], Case("commands run twice, late and out of order", 4)),
    (&["tenure.resends_whole"], Seed(10)),
    (&["tenure.stops_when_deposed"], Case("an owner is stopped with a call in its hands", 0)),
    (&["tenure.reasserts_fallen_back"], Case("a failover shows a dead owner before", 0)),
];

/// Rules of the tenure that its own test shows to be missed, whether the simulator does or
/// not: `each_rule_is_missed_by_somebody` in the crate `cluster` fails where one is not.
const SHOWN_BY_TENURE: &[&str] = &[
    "tenure.claims_after_lapse",
    "tenure.reasserts_after_failover",
    "tenure.reasserts_missing",
    "tenure.knows_late_claims",
    "tenure.repeats_claims",
    "tenure.resends_whole",
    "tenure.stops_when_deposed",
    "tenure.release_is_last",
    "tenure.release_waits",
    "tenure.claims_late_in_settling",
    "tenure.reasserts_end",
];

/// Rules that nothing has missed yet, and why.
const UNSHOWN: &[(&str, &str)] = &[
    (
        "unknown_by_lease",
        "430 seeds and a case do not miss it; what masks it, if anything, is not known",
    ),
    (
        "links_save",
        "no living process of the model refuses a connection, so none is marked dead by mistake",
    ),
    (
        "claims_own_draining",
        "430 seeds and a case do not miss it; what masks it, if anything, is not known",
    ),
    (
        "numbers_attachments",
        "430 seeds and a case do not miss it; what masks it, if anything, is not known",
    ),
    (
        "tenure.releases_settled",
        "6,000 lives and 20 seeds do not miss it; what masks it, if anything, is not known",
    ),
];

fn broken(witness: Witness, rules: Rules) -> Option<String> {
    let run = match witness {
        Seed(seed) => simulation::run_seed(seed, rules, false),
        Case(name, seed) => {
            let cases = simulation::cases();
            let case = cases.into_iter().find(|case| case.name.starts_with(name));
            let case = case.unwrap_or_else(|| panic!("no case is named {name}"));
            simulation::run(seed, case.plan, rules, false)
        }
    };
    run.broken
}

#[test]
fn without_a_rule_its_witness_sees_a_promise_broken_and_with_it_none() {
    let mut wrong = Vec::new();
    for (names, witness) in SHOWN {
        let with = broken(*witness, Rules::default());
        if let Some(broken) = with {
            wrong.push(format!("{witness:?} with all rules: {broken}"));
        }
        if broken(*witness, Rules::without(names)).is_none() {
            wrong.push(format!("{witness:?} does not miss {names:?}"));
        }
        // Each of those that mask each other is enough.
        for name in names.iter().filter(|_| names.len() > 1) {
            if let Some(broken) = broken(*witness, Rules::without(&[name])) {
                wrong.push(format!("{witness:?} misses {name} alone: {broken}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_rule_has_a_switch_of_its_own() {
    // As derived: it names every rule there is.
    let all = format!("{:?}", Rules::default());
    assert_eq!(all.matches(": true").count(), Rules::EACH.len(), "{all}");
    let mut seen = BTreeSet::new();
    for (name, _) in Rules::EACH {
        let without = format!("{:?}", Rules::without(&[name]));
        let field = name.trim_start_matches("tenure.");
        assert!(without.contains(&format!("{field}: false")), "{name} switches something else");
        assert_eq!(without.matches(": false").count(), 1, "{name} switches more than itself");
        assert!(seen.insert(without), "{name} switches what another does");
    }
}

#[test]
fn every_rule_is_shown_to_be_needed_or_said_not_to_be() {
    let shown = SHOWN.iter().flat_map(|(names, _)| names.iter().copied());
    let shown: BTreeSet<&str> = shown.chain(SHOWN_BY_TENURE.iter().copied()).collect();
    let unshown: BTreeSet<&str> = UNSHOWN.iter().map(|(name, _)| *name).collect();
    let each: BTreeSet<&str> = Rules::EACH.iter().map(|(name, _)| *name).collect();
    let both: Vec<_> = shown.intersection(&unshown).collect();
    assert!(both.is_empty(), "both shown and not: {both:?}");
    let named: BTreeSet<&str> = shown.union(&unshown).copied().collect();
    let missing: Vec<_> = each.difference(&named).collect();
    assert!(missing.is_empty(), "neither shown nor said not to be: {missing:?}");
    let strange: Vec<_> = named.difference(&each).collect();
    assert!(strange.is_empty(), "no rules: {strange:?}");
}
