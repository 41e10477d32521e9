//! Which store operation is next: a table of rows, of which the first that applies decides.
//!
//! `docs/reliability.md` shows the table; a test compares the two.

use super::Stabilisation;
use super::goal::Goal;
use crate::rules::rule;

/// May an operation be sent?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationStatus {
    Ready,
    /// A wait is not over.
    Paused,
    InFlight,
    Over,
}

/// The lease of the node, as the session sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseStatus {
    None,
    /// It was lost since the session was claimed.
    OfAnotherGeneration,
    /// The session was claimed under it.
    OfTheClaim,
}

/// The token that the record holds, as far as it may differ from the owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenStatus {
    OwnersToken,
    /// A claim was sent whose outcome is not known.
    ClaimSent,
    /// That of a late claim of this node.
    LateClaim,
}

/// Whether the store is known to hold the session as this owner wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wholeness {
    Whole,
    /// Record and log are to be re-asserted.
    Lost,
    /// As `Lost`, or the re-assertion was refused; and another node may own the session.
    Rivalled,
}

/// What the log and the record lack of what is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unwritten {
    Nothing,
    /// Entries, the floor, or a refresh of the record's time to live.
    Log,
    /// A newer state, and no entry that may be appended before it.
    State,
}

/// The inputs of the decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    pub(super) operation: OperationStatus,
    pub(super) goal: Goal,
    pub(super) lease: LeaseStatus,
    pub(super) token: TokenStatus,
    pub(super) wholeness: Wholeness,
    pub(super) stabilisation: Stabilisation,
    pub(super) unwritten: Unwritten,
}

impl Situation {
    /// A release was sent under the token that the record holds.
    fn is_release_sent(&self) -> bool {
        self.goal.is_release_sent() && self.token != TokenStatus::LateClaim && rule!(ReleaseIsLast)
    }

    fn is_lost(&self) -> bool {
        self.wholeness == Wholeness::Lost
    }

    /// Only a claim shows whether this node still owns the session, and under which token.
    fn must_claim(&self) -> bool {
        let is_claimed =
            self.lease == LeaseStatus::OfTheClaim && self.token != TokenStatus::ClaimSent;
        (!is_claimed && rule!(ClaimsAfterLapse))
            || self.token == TokenStatus::LateClaim
            || self.wholeness == Wholeness::Rivalled
    }

    fn is_unstable(&self) -> bool {
        self.stabilisation != Stabilisation::Done && rule!(ReleasesWhenStable)
    }

    fn is_to_release(&self) -> bool {
        matches!(self.goal, Goal::Release { .. })
    }

    /// Is the log, or the record, to be written now?
    fn is_to_write(&self, what: Unwritten) -> bool {
        let waits = !self.is_to_release() || rule!(ReleaseWaits);
        self.unwritten == what && !self.goal.is_end() && waits
    }
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Nothing,
    AwaitLease,
    AwaitStabilisation,
    Reassert,
    Claim,
    Append,
    Save,
    End,
    Release,
}

/// Decides what the owner does next.
pub(super) fn decide(situation: &Situation) -> Decision {
    first_row(situation).1
}

/// Writes each row once: its condition in words, the condition, the decision and its reason.
macro_rules! table {
    ($s:ident; $($when:literal if $condition:expr => $decision:ident, $why:literal;)+) => {
        /// The first row whose condition holds: its number and its decision.
        #[inline]
        fn first_row($s: &Situation) -> (usize, Decision) {
            let mut row = 0;
            $(
                if $condition {
                    return (row, Decision::$decision);
                }
                row += 1;
            )+
            (row, Decision::Nothing)
        }

        /// The table for the documentation.
        #[cfg(test)]
        const ROWS: &[Row] = &[
            $(Row { when: $when, decision: Decision::$decision, why: $why },)+
            Row {
                when: "otherwise",
                decision: Decision::Nothing,
                why: "The store holds everything, until the next refresh is due.",
            },
        ];
    };
}

table! { s;
    "an operation is in flight, or the ownership is over"
        if matches!(s.operation, OperationStatus::InFlight | OperationStatus::Over) => Nothing,
        "Operations are sent one at a time, so entries arrive in order.";
    "a wait is not over: after a failure, during stabilisation, or for a lease"
        if s.operation == OperationStatus::Paused => Nothing,
        "A failover, and for the last of these a lease, ends the wait.";
    "a release was sent, and the store may have lost the session since"
        if s.is_release_sent() && s.is_lost() => Reassert,
        "No node may take the session for unknown meanwhile. A store that holds the release refuses \
         the re-assertion.";
    "a release was sent, and stabilisation is not done"
        if s.is_release_sent() && s.is_unstable() => AwaitStabilisation,
        "Nothing is released before other owners had the time to re-assert their sessions.";
    "a release was sent"
        if s.is_release_sent() => Release,
        "The release may have been done: nothing else may be done under this token.";
    "the node holds no lease"
        if s.lease == LeaseStatus::None => AwaitLease,
        "Without a lease the owner does nothing.";
    "the store may have lost the session or part of it, no other node may own it, and the record does \
     not hold a late claim"
        if s.is_lost() && s.token != TokenStatus::LateClaim => Reassert,
        "Also after a lapse of the lease: a re-assertion claims nothing, and the record of a later \
         owner refuses it.";
    "the session must be claimed, and stabilisation is in its first half"
        if s.must_claim()
            && s.stabilisation == Stabilisation::First
            && rule!(ClaimsLateInStabilisation) => AwaitStabilisation,
        "An owner that came after this one re-asserts the session first.";
    "the session must be claimed: the lease was lost since the last claim, the outcome of a claim is \
     not known, the record holds a late claim, or another node may own the session"
        if s.must_claim() => Claim,
        "The answer to a claim says who owns the session, and gives this node a new token if it does.";
    "the session is not to end, and entries, the floor or a refresh are to be written to the log"
        if s.is_to_write(Unwritten::Log) => Append,
        "An entry that belongs to a newer state waits until the record holds that state.";
    "the session is not to end, and the record lacks the newest state"
        if s.is_to_write(Unwritten::State) => Save,
        "The next owner finds in the record what it reads in the log.";
    "the session is to end"
        if s.goal.is_end() => End,
        "Entries and states are of no use any more.";
    "the session is to be released, and stabilisation is not done"
        if s.is_to_release() && s.is_unstable() => AwaitStabilisation,
        "As for a release that was sent.";
    "the session is to be released"
        if s.is_to_release() => Release,
        "The store holds everything.";
}

/// A row of the table.
#[cfg(test)]
struct Row {
    when: &'static str,
    decision: Decision,
    why: &'static str,
}

#[cfg(test)]
mod tests;
