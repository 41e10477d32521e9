//! The rules of ownership, one by one.

/// What the protocol keeps to, each rule to be switched off alone. For tests: all are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// After a lapse of its node's lease the owner acts only once it has claimed anew.
    pub claims_after_lapse: bool,
    /// After a failover the owner writes record and ring anew, without being asked to.
    pub reasserts_after_failover: bool,
    /// A session that the store forgot is written anew.
    pub reasserts_missing: bool,
    /// A session that is missing, where no failover explains it, is over if another node could
    /// have claimed it: after a lapse of its node's lease, or after a release that was sent
    /// before. That node may have ended it.
    pub ends_missing_where_claimable: bool,
    /// An owner that another may have replaced, in a failover before the last, asks the store
    /// before it writes the session anew.
    pub asks_where_rivalled: bool,
    /// A record that fell back to a token before its own is replaced.
    pub reasserts_fallen_back: bool,
    /// A record that names this node under another token is a late claim of its own.
    pub knows_late_claims: bool,
    /// What was not acknowledged is sent again whole, in order.
    pub resends_whole: bool,
    /// An owner that was deposed stops.
    pub stops_when_deposed: bool,
    /// Nothing is done after a release was sent.
    pub release_is_last: bool,
    /// Nothing is released during stabilisation.
    pub releases_when_stable: bool,
    /// A release waits until everything is held.
    pub release_waits: bool,
    /// In the first half of stabilisation nothing is claimed: others re-assert first.
    pub claims_late_in_stabilisation: bool,
    /// The end of a session is written anew where the store forgot it.
    pub reasserts_end: bool,
    /// An entry is appended only when the record holds the state that changed with it.
    pub saves_before_it_appends: bool,
    /// A record is refreshed before it expires.
    pub refreshes: bool,
    /// Once others may claim after a failover, the owner acts only if the store has said since
    /// that it names this owner.
    pub acts_when_sure: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            claims_after_lapse: true,
            reasserts_after_failover: true,
            reasserts_missing: true,
            ends_missing_where_claimable: true,
            asks_where_rivalled: true,
            reasserts_fallen_back: true,
            knows_late_claims: true,
            resends_whole: true,
            stops_when_deposed: true,
            release_is_last: true,
            releases_when_stable: true,
            release_waits: true,
            claims_late_in_stabilisation: true,
            reasserts_end: true,
            saves_before_it_appends: true,
            refreshes: true,
            acts_when_sure: true,
        }
    }
}
