//! Every rule of the protocol is needed: switched off, something that is promised breaks.
//!
//! A witness is found with
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
    (&["told_primary"], Seed(119)),
    (&["acts_by_lease"], Case("a stopped owner wakes beside its heir", 0)),
    (&["acts_by_lease"], Seed(3)),
    (&["epochs"], Case("an owner that lapsed and came back answers", 0)),
    (&["epochs"], Seed(3)),
    (&["self_claims"], Case("a claim is done and its answer is lost", 0)),
    (&["self_claims"], Seed(23)),
    (&["marks_again"], Case("what was handed to a link is not handed", 0)),
    (&["marks_again"], Seed(2)),
    (&["remembers_ends"], Case("an ended session does not come back", 0)),
    (&["remembers_ends"], Seed(255)),
    (&["tenure.claims_after_lapse"], Case("an owner that lapsed and came back answers", 0)),
    (&["tenure.claims_after_lapse"], Seed(3)),
    (&["tenure.reasserts_missing"], Seed(5)),
    (&["tenure.reasserts_missing"], Seed(34)),
    (&["settles"], Seed(144)),
    (&["settles"], Seed(221)),
    (&["settles", "waits_out_leases"], Case("a replica whose clock is ahead shows", 3)),
    (&["settles", "waits_out_leases"], Seed(199)),
    (&["claims_by_lease", "epochs"], Case("a claim is answered when the claimant's lease", 0)),
    (&["one_claim", "self_claims"], Case("a failover forgets a claim, and the next", 1)),
    (&["one_claim", "self_claims"], Seed(8)),
    (&["ends_before_word"], Case("an owner dies that was asked for the end", 0)),
    (&["ends_before_word"], Seed(367)),
    (&["tenure.resends_whole"], Case("commands run twice, late and out of order", 4)),
    (&["tenure.resends_whole"], Seed(2)),
    (&["tenure.stops_when_deposed"], Case("an owner is stopped with a call in its hands", 0)),
    (&["tenure.stops_when_deposed"], Seed(3)),
    (&["tenure.reasserts_fallen_back"], Case("a failover shows a dead owner before", 0)),
    (&["tenure.reasserts_fallen_back"], Seed(29)),
    (&["unknown_by_lease"], Case("a node that stayed with a deposed primary", 1)),
    (&["links_save"], Case("a firewall is loaded anew between two nodes", 0)),
    (&["links_save"], Seed(30)),
    (&["leaves_lapsed"], Case("what was brought to a node waits there", 0)),
    (&["renews_on_loss"], Case("whoever had a link to a killed process", 0)),
    (&["claims_own_draining"], Case("a node drains for long whose claim", 0)),
    (&["numbers_attachments"], Case("a former owner says that it has lost", 0)),
    (&["settles", "tenure.releases_settled"], Case("who was cut off with a release", 0)),
    (&["tenure.refreshes"], Case("a stream is silent for longer than", 0)),
    (&["tenure.refreshes"], Case("a session is idle for longer than", 0)),
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
fn every_rule_is_shown_to_be_needed() {
    let shown = SHOWN.iter().flat_map(|(names, _)| names.iter().copied());
    let shown: BTreeSet<&str> = shown.chain(SHOWN_BY_TENURE.iter().copied()).collect();
    let each: BTreeSet<&str> = Rules::EACH.iter().map(|(name, _)| *name).collect();
    let missing: Vec<_> = each.difference(&shown).collect();
    assert!(missing.is_empty(), "nothing misses {missing:?}");
    let strange: Vec<_> = shown.difference(&each).collect();
    assert!(strange.is_empty(), "no rules: {strange:?}");
}
