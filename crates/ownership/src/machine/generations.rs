//! What an owner knows of its session in the store, failover generation by failover generation.

use super::{LeaseSnapshot, Stabilisation};
use crate::rules::rule;

/// The failover generations of a session's primary, as its owner knows them.
#[derive(Debug)]
pub(super) struct Generations {
    /// The newest generation that the owner knows.
    seen: u64,
    /// The newest one in which the store is known to name this owner.
    confirmed: u64,
    /// The newest generation in which the store answered which owner it names.
    answered: u64,
    /// The newest one in which the store is known to hold the whole session.
    whole: u64,
    /// When the newest generation began, the store was not known to name this owner.
    began_in_doubt: bool,
    /// The store refused a re-assertion since the owner last asked which owner it names: the
    /// store is full, or does not answer.
    reassertion_failed: bool,
}

impl Generations {
    /// The session was created or claimed in this generation.
    pub(super) fn new(acquired: u64) -> Self {
        Self {
            seen: acquired,
            confirmed: acquired,
            answered: 0,
            whole: acquired,
            began_in_doubt: false,
            reassertion_failed: false,
        }
    }

    /// The newest generation that the owner knows.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// The newest generation in which the store is known to hold the whole session.
    pub(super) fn whole(&self) -> u64 {
        self.whole
    }

    /// Records a generation. Returns whether it is newer than all before it.
    pub(super) fn observe(&mut self, generation: u64) -> bool {
        if generation <= self.seen {
            return false;
        }
        self.began_in_doubt = !self.is_confirmed();
        self.seen = generation;
        // The session may be missing until it is re-asserted.
        self.reassertion_failed = false;
        true
    }

    /// The store holds the whole session under this owner, as re-asserted in this generation.
    pub(super) fn reasserted(&mut self, generation: u64) {
        self.whole = generation;
        self.confirmed = self.confirmed.max(generation);
    }

    /// The store holds the end of the session, as re-asserted in this generation.
    pub(super) fn end_reasserted(&mut self, generation: u64) {
        self.whole = generation;
    }

    /// A re-assertion failed, or its outcome is not known.
    pub(super) fn reassertion_failed(&mut self) {
        self.reassertion_failed = true;
    }

    /// A claim is sent: the answer shows which owner the store names.
    pub(super) fn claim_sent(&mut self) {
        self.reassertion_failed = false;
    }

    /// The store has answered which owner it names.
    pub(super) fn owner_answered(&mut self) {
        self.answered = self.seen;
    }

    /// A claim succeeded that was sent in this generation.
    pub(super) fn claimed(&mut self, generation: u64) {
        self.confirmed = self.confirmed.max(generation);
    }

    /// Is the store known to name this owner since the newest failover that was seen?
    pub(super) fn is_confirmed(&self) -> bool {
        self.seen <= self.confirmed || !rule!(ActsWhenSure)
    }

    /// Has the store failed over since it was last known to hold the whole session?
    pub(super) fn is_forgotten(&self, snapshot: &LeaseSnapshot) -> bool {
        self.whole < self.seen.max(snapshot.failover_generation) && rule!(ReassertsAfterFailover)
    }

    /// Can no other node have claimed the session yet?
    ///
    /// A failover may have lost the claim of this owner. Another node that saw the failover earlier
    /// claims the session in the second half of stabilisation at the earliest. That half may be
    /// over for the failover before this one, and for this one where only the leases stabilise
    /// again.
    pub(super) fn is_unclaimable(&self, snapshot: &LeaseSnapshot) -> bool {
        let is_exposed = snapshot.claimable.newest > self.confirmed;
        snapshot.stabilisation == Stabilisation::First && !self.began_in_doubt && !is_exposed
    }

    /// Must the store be asked whether it names this owner before the session is re-asserted?
    /// Yes where another node may own the session, and where the store refused the re-assertion:
    /// a full store accepts a claim, which takes no room.
    pub(super) fn asks_first(&self, snapshot: &LeaseSnapshot) -> bool {
        let refused = self.reassertion_failed && snapshot.stabilisation != Stabilisation::First;
        // Another node may have claimed the session at a former primary, and that claim is lost now.
        let is_rivalled = snapshot.claimable.former > self.confirmed
            && self.answered < self.seen
            && rule!(AsksWhereRivalled);
        (refused || is_rivalled) && !self.is_confirmed()
    }
}
