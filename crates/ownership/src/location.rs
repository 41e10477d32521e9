//! Where a session is, and whether it may be claimed: pure decisions.
//!
//! The caller reads the record and the owner's presence from the store. It also passes whether
//! its own lease was valid from before the request until after the answer: a node that was
//! suspended cannot decide which node is gone, since it may be gone itself.

use crate::rules::rule;
use crate::validity::LeaseValidity;
use crate::{Claimed, Error, Expected, Incarnation, Presence, Record, RecordStatus};

/// Where a session is, according to its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// It has ended.
    Ended,
    /// At this node.
    Here,
    /// At another node, if its presence proves that; see [`claimable`].
    At(Incarnation),
    /// At no node: it may be claimed.
    Ownerless(Cause),
}

/// Why a session may be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its owner released it.
    Released,
    /// Its owner's lease expired.
    Lapsed,
    /// Its owner's process is dead.
    Dead,
    /// The record names this node, which does not have it.
    Own,
}

/// The node that claims a session without an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimant {
    /// The node that looks for the session, which then serves it.
    This,
    /// The node that looks for the session, which then releases it: the record names this node as
    /// the owner, so no other node may claim the session.
    ThisForAnother,
    /// Another node, at the request of this one.
    Another,
}

/// Why the location cannot be decided now. A later attempt may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecided {
    /// The store failed over recently, and owners may not have re-asserted their sessions yet.
    Stabilisation,
    /// This node could not reach the store until recently, so other nodes may not have renewed
    /// their leases yet.
    OutOfReach,
    /// This node did not hold a lease the whole time.
    NoLease,
}

/// The location of a session according to its record. `own`: this node.
pub fn of_record(record: &Record, own: Incarnation) -> Location {
    match record.status {
        RecordStatus::Ended => Location::Ended,
        RecordStatus::Released => Location::Ownerless(Cause::Released),
        RecordStatus::Owned if record.owner.node == own => Location::Here,
        RecordStatus::Owned => Location::At(record.owner.node),
    }
}

/// There is no record: is the session unknown? Its owner may be about to re-assert it, and a
/// suspended node may have read from a primary that was replaced.
pub fn is_unknown(is_stable: bool, lease_held: bool) -> Result<(), Undecided> {
    match (is_stable || !rule!(WaitsOutStabilisation), lease_held || !rule!(UnknownByLease)) {
        (false, _) => Err(Undecided::Stabilisation),
        (true, false) => Err(Undecided::NoLease),
        (true, true) => Ok(()),
    }
}

/// Does an expired lease prove that its node does not renew it? If that is not known, returns
/// why.
///
/// `outlasts_failover`: the primary has kept the leases for as long as one lasts, see
/// [`crate::failover::FailoverTracker::lapse_proves`].
pub fn lapse_proof(
    outlasts_failover: bool,
    own: &LeaseValidity,
    now_ms: u64,
) -> Result<(), Undecided> {
    if !outlasts_failover {
        return Err(Undecided::Stabilisation);
    }
    match (own.lapse_proves(now_ms), own.generation_if_valid(now_ms)) {
        (true, _) => Ok(()),
        (false, Some(_)) => Err(Undecided::OutOfReach),
        (false, None) => Err(Undecided::NoLease),
    }
}

/// May a session be claimed whose owner has this presence? `None` while the owner is alive.
///
/// `lapse_proves`: the result of [`lapse_proof`].
pub fn claimable(
    presence: &Presence,
    lapse_proves: Result<(), Undecided>,
    lease_held: bool,
) -> Result<Option<Cause>, Undecided> {
    match presence {
        Presence::Live(_) => Ok(None),
        Presence::Dead { .. } => Ok(Some(Cause::Dead)),
        Presence::Gone => {
            lapse_proves?;
            let is_known = lease_held || !rule!(ClaimsByLease);
            if is_known { Ok(Some(Cause::Lapsed)) } else { Err(Undecided::NoLease) }
        }
    }
}

/// Which node claims a session without an owner, for this reason, at the node that received a
/// request for it.
///
/// `is_leaving`: this node takes no more sessions. `is_stable`: it knows what the store may have
/// forgotten; a node that has just started does not, while others may. `has_taker`: this node
/// knows another that takes sessions.
pub fn claimant(cause: Cause, is_leaving: bool, is_stable: bool, has_taker: bool) -> Claimant {
    let is_new = !is_stable && rule!(WaitsOutStabilisation);
    match cause {
        _ if conversation::mutant!("location.leaves_its_own") => Claimant::Another,
        Cause::Own if !is_leaving => Claimant::This,
        Cause::Own if rule!(ClaimsOwnDraining) => Claimant::ThisForAnother,
        _ if is_leaving || (is_new && has_taker) => Claimant::Another,
        _ => Claimant::This,
    }
}

/// What the claimant of a session expects in its record.
pub fn expected(record: &Record) -> Expected {
    match record.status {
        RecordStatus::Released => Expected::Released,
        RecordStatus::Owned | RecordStatus::Ended => Expected::Token(record.owner.token),
    }
}

/// May a claim be sent now?
pub fn may_claim(is_stable: bool, lease_held: bool) -> Result<(), Undecided> {
    match (is_stable || !rule!(WaitsOutStabilisation), lease_held || !rule!(ClaimsByLease)) {
        (false, _) => Err(Undecided::Stabilisation),
        (true, false) => Err(Undecided::NoLease),
        (true, true) => Ok(()),
    }
}

/// The meaning of the store's answer for the claimant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The session is the claimant's.
    Claimed,
    /// The claim succeeded, but the lease was not held throughout: the node claims the session
    /// from itself once it holds a lease.
    NoLease,
    /// Another node claimed the session first, or the session ended.
    Taken,
    /// The outcome of the claim is not known: the same claim may be sent again.
    NotKnown,
    /// The claim failed.
    Failed,
}

/// The outcome of a claim. `lease_held`: from before it was sent until it was answered.
pub fn claim_outcome(answer: &Result<Claimed, Error>, lease_held: bool) -> Outcome {
    match answer {
        Ok(_) if lease_held || !rule!(ClaimsByLease) => Outcome::Claimed,
        Ok(_) => Outcome::NoLease,
        // A session that was released a moment ago is claimed as released after another look.
        Err(Error::Fenced(_) | Error::Missing | Error::Ended | Error::Released) => Outcome::Taken,
        Err(Error::Unavailable(_)) => Outcome::NotKnown,
        Err(_) => Outcome::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_session_is_unknown_only_to_a_stable_node_with_a_lease() {
        assert_eq!(is_unknown(true, true), Ok(()));
        assert_eq!(is_unknown(true, false), Err(Undecided::NoLease));
        assert_eq!(is_unknown(false, true), Err(Undecided::Stabilisation));
    }

    #[test]
    fn a_lease_that_is_gone_proves_only_what_it_can() {
        let gone = |proves, held| claimable(&Presence::Gone, proves, held);
        assert_eq!(gone(Ok(()), true), Ok(Some(Cause::Lapsed)));
        assert_eq!(gone(Ok(()), false), Err(Undecided::NoLease));
        for undecided in [Undecided::Stabilisation, Undecided::OutOfReach] {
            assert_eq!(gone(Err(undecided), true), Err(undecided));
        }
        let dead = Presence::Dead { by: Incarnation(1) };
        let stabilisation = Err(Undecided::Stabilisation);
        assert_eq!(claimable(&dead, stabilisation, false), Ok(Some(Cause::Dead)));
    }

    #[test]
    fn what_has_no_owner_is_left_to_another_where_this_node_leaves_or_is_new() {
        assert_eq!(claimant(Cause::Dead, false, true, true), Claimant::This);
        assert_eq!(claimant(Cause::Dead, false, false, true), Claimant::Another);
        assert_eq!(claimant(Cause::Dead, false, false, false), Claimant::This);
        assert_eq!(claimant(Cause::Released, true, true, false), Claimant::Another);
        // No other node may claim it.
        assert_eq!(claimant(Cause::Own, false, false, true), Claimant::This);
        assert_eq!(claimant(Cause::Own, true, true, true), Claimant::ThisForAnother);
    }

    #[test]
    fn a_claim_whose_answer_was_lost_may_be_sent_again_and_a_lost_one_not() {
        let outcome = |error| claim_outcome(&Err(error), true);
        assert_eq!(
            outcome(Error::Unavailable(std::io::Error::other("no answer"))),
            Outcome::NotKnown
        );
        assert_eq!(outcome(Error::Missing), Outcome::Taken);
        assert_eq!(outcome(Error::LeaseGone), Outcome::Failed);
    }
}
