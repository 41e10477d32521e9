//! What the simulated nodes keep to, each to be switched off alone.

/// The rules of the protocol that are not in the code under test but around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Claims and releases go only to a primary that the node was told of, and a session
    /// that another does not have is not missing.
    pub told_primary: bool,
    /// After a failover, and after its start, a node claims nothing for a while.
    pub settles: bool,
    /// After a failover, and after its start, a lease that is gone proves nothing for the
    /// time that a lease lasts.
    pub waits_out_leases: bool,
    /// A node claims only while its own lease holds, when it asks and when it is answered.
    pub claims_by_lease: bool,
    /// A node says that a session is unknown only while its own lease holds.
    pub unknown_by_lease: bool,
    /// A node acts only while its lease holds.
    pub acts_by_lease: bool,
    /// A lease that lapsed, or was gone, makes every session unverified.
    pub epochs: bool,
    /// A lost link makes a node renew at once.
    pub renews_on_loss: bool,
    /// Whoever still has a link to a node keeps it from being marked dead.
    pub links_save: bool,
    /// A node that the record names, and that has no such session, claims it from itself.
    pub self_claims: bool,
    /// A draining node does so as well, and gives the session up again.
    pub claims_own_draining: bool,
    /// One claim for a session and node at a time; others wait for it.
    pub one_claim: bool,
    /// What may have been started is never sent again as if it had not been.
    pub marks_again: bool,
    /// Frames and calls of a former attachment are dropped.
    pub numbers_attachments: bool,
    /// The end of a session is told only when it is written.
    pub ends_before_word: bool,
    /// Owners re-assert what they own after a failover.
    pub reasserts: bool,
    /// What became of the tenure: its own rules.
    pub tenure: cluster::tenure::Rules,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            told_primary: true,
            settles: true,
            waits_out_leases: true,
            claims_by_lease: true,
            unknown_by_lease: true,
            acts_by_lease: true,
            epochs: true,
            renews_on_loss: true,
            links_save: true,
            self_claims: true,
            claims_own_draining: true,
            one_claim: true,
            marks_again: true,
            numbers_attachments: true,
            ends_before_word: true,
            reasserts: true,
            tenure: cluster::tenure::Rules::default(),
        }
    }
}
