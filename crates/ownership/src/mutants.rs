//! Faults for tests of the tests: each breaks one decision of this crate.
//!
//! Only builds with the feature `mutants` contain a fault, and no release build has it: without
//! the feature [`conversation::mutant!`] is the literal `false`. The test `mutants` of the
//! simulator selects each fault in turn and fails where no seed and no schedule finds it.

/// The name of each fault, and what it does.
pub const MUTANTS: &[(&str, &str)] = &[
    (
        "route.a_question_has_the_request",
        "a call counts as begun at a node that was only asked to take its session up",
    ),
    ("route.end_is_unknown", "a DELETE that a lost owner has done finds an unknown session"),
    ("location.leaves_its_own", "a session that names this node is left to others, as all are"),
    ("detector.never_dead", "a peer that refuses connections is never found dead"),
    ("detector.dead_at_once", "the first look at the lease of a peer finds it dead"),
    ("detector.ignore_renewals", "a peer that renews its lease can be found dead"),
    ("detector.a_closed_link_proves_nothing", "a killed process is dead only when it renews late"),
    (
        "detector.count_from_the_break",
        "a lease counts as standing still since the link broke, seen or not",
    ),
    ("detector.never_saw_an_end", "two processes that end together keep each other alive"),
    ("failover.never_noticed", "a primary that was not there before is taken for the former one"),
    ("failover.a_lapse_proves_at_once", "right after a failover a lease that is gone is over"),
    ("failover.no_stabilisation", "nodes claim sessions right after a failover"),
    ("tombstones.never_due", "a tombstone is not written anew after a failover"),
    ("lease.a_lapse_begins_no_generation", "sessions stay verified when the lease was lost"),
    ("lease.never_over", "a node acts on when its lease is over"),
    ("lease.the_others_lapsed_alone", "a lease that lapsed while no node could renew is over"),
    ("ownership.number_from_the_newest", "entries that wait are numbered by the newest of them"),
    ("ownership.release_instead_of_an_end", "a session that ends is released"),
    ("ownership.act_without_a_lease", "the owner acts while its node holds no lease"),
    (
        "ownership.act_before_the_claim",
        "the owner acts after a lapse of the lease before it has claimed anew",
    ),
    ("ownership.never_write_the_end", "the end of a session is not written"),
    ("ownership.reassert_without_the_oldest_entry", "a re-assertion leaves out its first entry"),
    ("ownership.reassert_without_the_log", "a re-assertion writes the record only"),
    ("ownership.append_without_the_oldest_entry", "an append leaves out its first entry"),
    (
        "ownership.take_an_extension_for_written",
        "a difference counts as written although the record had another version",
    ),
    ("ownership.take_a_save_for_the_newest", "a saved state counts as the newest one"),
    (
        "ownership.report_nothing_after_a_retry",
        "the session is not told of an operation that succeeded when it was retried",
    ),
    ("ownership.never_retry", "an operation that failed is not retried"),
    (
        "ownership.acknowledge_what_came_since",
        "an append also acknowledges entries that came since it was sent",
    ),
    ("ownership.act_on_under_the_older_token", "a claim that succeeded does not change the token"),
    ("ownership.claim_reports_no_state", "a claim does not report the state that it finds saved"),
    (
        "ownership.claim_trusts_its_own_state",
        "after a claim the state in the record counts as the newest",
    ),
    ("ownership.an_unknown_outcome_is_a_success", "an append of unknown outcome counts as done"),
    ("ownership.ignore_a_hole", "a log with a hole is not written anew"),
    ("ownership.deposed_is_released", "an owner that was replaced takes itself for released"),
    (
        "ownership.replace_a_newer_owner",
        "an owner overwrites the record of the owner that replaced it",
    ),
];
