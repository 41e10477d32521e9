//! Whether the owner of a session may act: its node holds the lease that the session was claimed
//! under, and the store is known to name this owner, or cannot name another yet.

use conversation::mutant;

use super::in_flight::Phase;
use super::token_doubt::TokenDoubt;
use super::{LeaseSnapshot, Ownership};
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
        let is_released = self.goal.is_release_sent() && rule!(ReleaseIsLast);
        let is_over = matches!(self.phase, Phase::Over) || is_released;
        if !mine || is_over || self.token_doubt.late_claim().is_some() {
            return false;
        }
        self.is_sure() || self.generations.is_unclaimable(&snapshot())
    }

    /// Takes note of the failover generation. Returns whether it is a newer one. To be called
    /// before [`Ownership::may_act`], also while an operation is in flight.
    pub fn observe(&mut self, failover_generation: u64) -> bool {
        let is_newer = self.generations.observe(failover_generation);
        if is_newer {
            self.attempts.reset();
        }
        is_newer
    }

    /// Is the store known to name this owner since it failed over last, as far as was seen?
    pub fn is_sure(&self) -> bool {
        self.generations.is_confirmed()
    }

    /// Was the session claimed under this lease? A claim that was sent may yet be done: then this
    /// is the owner under another token.
    fn is_claimed(&self, lease_generation: u64) -> bool {
        let is_claim_sent =
            matches!(self.token_doubt, TokenDoubt::ClaimSent(_) | TokenDoubt::LateClaimAndSent(_));
        let is_claimed = lease_generation == self.lease_generation && !is_claim_sent;
        is_claimed || !rule!(ClaimsAfterLapse)
    }
}
