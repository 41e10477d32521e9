//! The table of decisions: it is total, each row is used, and the documentation shows it.

use std::collections::BTreeSet;

use super::*;

impl Decision {
    /// In words, for the page.
    fn words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::AwaitLease => "wait for a lease",
            Self::AwaitStabilisation => "wait 100 ms",
            Self::Reassert => "re-assert record and log",
            Self::Claim => "claim the session",
            Self::Append => "append",
            Self::Save => "save the state, or add what changed to it",
            Self::End => "end the session",
            Self::Release => "release the session",
        }
    }
}

/// Every situation, whether or not it can occur.
fn situations() -> Vec<Situation> {
    let mut all = vec![Situation {
        operation: OperationStatus::Ready,
        goal: Goal::Keep,
        lease: LeaseStatus::OfTheClaim,
        token: TokenStatus::OwnersToken,
        wholeness: Wholeness::Whole,
        stabilisation: Stabilisation::Done,
        unwritten: Unwritten::Nothing,
    }];
    macro_rules! vary {
        ($field:ident: $($value:expr),+) => {
            all = all
                .iter()
                .flat_map(|situation| [$(Situation { $field: $value, ..*situation }),+])
                .collect();
        };
    }
    vary!(operation: OperationStatus::Ready, OperationStatus::Paused, OperationStatus::InFlight, OperationStatus::Over);
    vary!(goal: Goal::Keep, Goal::Release { sent: false }, Goal::Release { sent: true },
        Goal::End { release_sent: false }, Goal::End { release_sent: true });
    vary!(lease: LeaseStatus::None, LeaseStatus::OfAnotherGeneration, LeaseStatus::OfTheClaim);
    vary!(token: TokenStatus::OwnersToken, TokenStatus::ClaimSent, TokenStatus::LateClaim);
    vary!(wholeness: Wholeness::Whole, Wholeness::Lost, Wholeness::Rivalled);
    vary!(stabilisation: Stabilisation::First, Stabilisation::Second, Stabilisation::Done);
    vary!(unwritten: Unwritten::Nothing, Unwritten::Log, Unwritten::State);
    all
}

#[test]
fn every_situation_has_a_row_and_every_row_a_situation() {
    let situations = situations();
    assert_eq!(situations.len(), 4 * 5 * 3 * 3 * 3 * 3 * 3);
    let mut used = BTreeSet::new();
    for situation in &situations {
        let (row, decision) = first_row(situation);
        assert_eq!(ROWS[row].decision, decision, "{situation:?}");
        assert_eq!(decide(situation), decision);
        used.insert(row);
    }
    assert_eq!(used.len(), ROWS.len(), "of {} rows only {used:?} are used", ROWS.len());
}

#[test]
fn in_no_situation_is_done_what_must_not_be() {
    for situation in situations() {
        let Situation { operation, goal, lease, token, wholeness, stabilisation, .. } = situation;
        let decision = decide(&situation);
        let is = |decisions: &[Decision]| decisions.contains(&decision);
        let sends = !is(&[Decision::Nothing, Decision::AwaitLease, Decision::AwaitStabilisation]);
        let release_sent = goal.is_release_sent() && token != TokenStatus::LateClaim;
        let forbidden = [
            ("more than one operation", operation != OperationStatus::Ready && sends),
            ("without a lease", lease == LeaseStatus::None && !release_sent && sends),
            (
                "after a release",
                release_sent && sends && !is(&[Decision::Release, Decision::Reassert]),
            ),
            (
                "early",
                stabilisation == Stabilisation::First && is(&[Decision::Claim, Decision::Release]),
            ),
            ("for no reason", goal == Goal::Keep && is(&[Decision::Release, Decision::End])),
            ("beside a rival", wholeness != Wholeness::Lost && is(&[Decision::Reassert])),
            (
                "under a doubtful token",
                (lease != LeaseStatus::OfTheClaim || token != TokenStatus::OwnersToken)
                    && is(&[Decision::Append, Decision::Save, Decision::End]),
            ),
        ];
        for (what, is_done) in forbidden {
            assert!(!is_done, "{what}: {decision:?} in {situation:?}");
        }
    }
}

/// The table as Markdown.
fn markdown() -> String {
    let head = "| # | where | the owner does | why |\n|---|---|---|---|\n".to_owned();
    let rows = ROWS.iter().enumerate().map(|(at, Row { when, decision, why })| {
        format!("| {} | {when} | {} | {why} |\n", at + 1, decision.words())
    });
    rows.fold(head, |page, row| page + &row)
}

#[test]
fn the_page_on_reliability_shows_the_table() {
    const BEGIN: &str = "<!-- begin: decisions of an owner -->\n";
    const END: &str = "<!-- end: decisions of an owner -->\n";
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reliability.md");
    let page = std::fs::read_to_string(page).expect("the page is readable");
    let shown = page.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END));
    let (shown, _) = shown.expect("the page has the markers");
    assert_eq!(shown, markdown(), "docs/reliability.md must show this table:\n{}", markdown());
}
