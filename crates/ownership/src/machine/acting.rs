//! Whether the owner of a session may act: its node holds the lease that the session was claimed
//! under, and the store is known to name this owner, or cannot name another yet.

use conversation::mutant;

use super::{LeaseSnapshot, Ownership, Stabilisation};
use crate::rules::rule;

impl Ownership {
    /// May anything be done for the session now, given the generation of the node's lease?
    /// `snapshot` is taken only where that does not decide it.
    pub fn may_act(
        &self,
        lease_generation: Option<u64>,
        snapshot: impl FnOnce() -> LeaseSnapshot,
    ) -> bool {
        let mine = lease_generation.is_some_and(|generation| self.is_claimed(generation))
            || (lease_generation.is_none() && mutant!("ownership.act_without_a_lease"))
            || (lease_generation.is_some() && mutant!("ownership.act_before_the_claim"));
        let gone = self.over || (self.released && rule!(ReleaseIsLast));
        if !mine || gone || self.late.is_some() {
            return false;
        }
        self.is_sure() || self.has_time(&snapshot())
    }

    /// Can no other node have claimed the session yet?
    fn has_time(&self, snapshot: &LeaseSnapshot) -> bool {
        // A failover may have forgotten that this owner claimed the session. Then, in the second
        // half of stabilisation at the earliest, another that has seen the failover before claims
        // it; of the failover before this one that half may be over, and of this one where only the
        // leases stabilise anew.
        let is_exposed = snapshot.claimable.newest > self.sure;
        snapshot.stabilisation == Stabilisation::First && !self.doubted && !is_exposed
    }

    /// Takes note of the failover generation. Is it another? To be called before it is asked
    /// whether the owner may act, also while an operation is under way.
    pub fn observe(&mut self, failover_generation: u64) -> bool {
        if failover_generation <= self.seen {
            return false;
        }
        self.doubted = !self.is_sure();
        self.seen = failover_generation;
        // Why an operation failed before says nothing any more, and the session may be missing
        // until it is written anew.
        (self.failures, self.retry_at, self.unwritten) = (0, 0, false);
        true
    }

    /// Is the store known to name this owner since it failed over last, as far as was seen?
    pub fn is_sure(&self) -> bool {
        self.seen <= self.sure || !rule!(ActsWhenSure)
    }

    /// Is the store to be asked whether it names this owner, before the session is written anew?
    /// So where another may own it; and where the store refused it, which is full: a claim takes
    /// no room.
    pub(super) fn asks_first(&self, snapshot: &LeaseSnapshot) -> bool {
        let refused = self.unwritten && snapshot.stabilisation != Stabilisation::First;
        // In the generation of a former primary another may have claimed it, and that claim is
        // forgotten now.
        let is_rivalled = snapshot.claimable.former > self.sure
            && self.answered < self.seen
            && rule!(AsksWhereRivalled);
        (refused || is_rivalled) && !self.ending && !self.is_sure()
    }

    pub(super) fn is_claimed(&self, lease_generation: u64) -> bool {
        // A claim that was sent may yet be done: then this is the owner under another token.
        let is_claimed = lease_generation == self.lease_generation && self.claiming.is_none();
        is_claimed || !rule!(ClaimsAfterLapse)
    }
}
