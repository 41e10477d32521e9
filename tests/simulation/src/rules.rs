//! What the simulated nodes keep to, each to be switched off alone.

/// The rules of the protocol that are not in the code under test but around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Claims and releases go only to a primary that the node was told of, and a session
    /// that another does not have is not missing.
    pub told_primary: bool,
    /// After a failover, and after its start, a node claims nothing for a while.
    pub waits_out_stabilisation: bool,
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
    pub lease_generations: bool,
    /// A lost link makes a node renew at once.
    pub renews_on_loss: bool,
    /// A node to which another node still has a link is not marked dead.
    pub links_save: bool,
    /// A node that holds a lease takes back what it sent to a node whose lease is over.
    pub leaves_lapsed: bool,
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
    /// An owner tells its session that the end is durable only when the store has said so.
    pub ends_before_word: bool,
    /// A node keeps what says that a session is over, and writes it anew after a failover.
    pub remembers_ends: bool,
    /// What became of the ownership: its own rules.
    pub ownership: ownership::machine::Rules,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            told_primary: true,
            waits_out_stabilisation: true,
            waits_out_leases: true,
            claims_by_lease: true,
            unknown_by_lease: true,
            acts_by_lease: true,
            lease_generations: true,
            renews_on_loss: true,
            links_save: true,
            leaves_lapsed: true,
            self_claims: true,
            claims_own_draining: true,
            one_claim: true,
            marks_again: true,
            numbers_attachments: true,
            ends_before_word: true,
            remembers_ends: true,
            ownership: ownership::machine::Rules::default(),
        }
    }
}

/// Switches one rule off.
type Off = fn(&mut Rules);

impl Rules {
    /// Every rule by its name.
    pub const EACH: &[(&str, Off)] = &[
        ("told_primary", |rules| rules.told_primary = false),
        ("waits_out_stabilisation", |rules| rules.waits_out_stabilisation = false),
        ("waits_out_leases", |rules| rules.waits_out_leases = false),
        ("claims_by_lease", |rules| rules.claims_by_lease = false),
        ("unknown_by_lease", |rules| rules.unknown_by_lease = false),
        ("acts_by_lease", |rules| rules.acts_by_lease = false),
        ("lease_generations", |rules| rules.lease_generations = false),
        ("renews_on_loss", |rules| rules.renews_on_loss = false),
        ("links_save", |rules| rules.links_save = false),
        ("leaves_lapsed", |rules| rules.leaves_lapsed = false),
        ("self_claims", |rules| rules.self_claims = false),
        ("claims_own_draining", |rules| rules.claims_own_draining = false),
        ("one_claim", |rules| rules.one_claim = false),
        ("marks_again", |rules| rules.marks_again = false),
        ("numbers_attachments", |rules| rules.numbers_attachments = false),
        ("ends_before_word", |rules| rules.ends_before_word = false),
        ("remembers_ends", |rules| rules.remembers_ends = false),
        ("ownership.claims_after_lapse", |rules| rules.ownership.claims_after_lapse = false),
        ("ownership.reasserts_after_failover", |rules| {
            rules.ownership.reasserts_after_failover = false
        }),
        ("ownership.reasserts_missing", |rules| rules.ownership.reasserts_missing = false),
        ("ownership.ends_missing_where_claimable", |rules| {
            rules.ownership.ends_missing_where_claimable = false
        }),
        ("ownership.asks_where_rivalled", |rules| rules.ownership.asks_where_rivalled = false),
        ("ownership.reasserts_fallen_back", |rules| rules.ownership.reasserts_fallen_back = false),
        ("ownership.knows_late_claims", |rules| rules.ownership.knows_late_claims = false),
        ("ownership.resends_whole", |rules| rules.ownership.resends_whole = false),
        ("ownership.release_waits", |rules| rules.ownership.release_waits = false),
        ("ownership.stops_when_deposed", |rules| rules.ownership.stops_when_deposed = false),
        ("ownership.release_is_last", |rules| rules.ownership.release_is_last = false),
        ("ownership.releases_when_stable", |rules| rules.ownership.releases_when_stable = false),
        ("ownership.claims_late_in_stabilisation", |rules| {
            rules.ownership.claims_late_in_stabilisation = false
        }),
        ("ownership.reasserts_end", |rules| rules.ownership.reasserts_end = false),
        ("ownership.saves_before_it_appends", |rules| {
            rules.ownership.saves_before_it_appends = false
        }),
        ("ownership.refreshes", |rules| rules.ownership.refreshes = false),
        ("ownership.acts_when_sure", |rules| rules.ownership.acts_when_sure = false),
    ];

    /// All rules but these.
    pub fn without(names: &[&str]) -> Self {
        let mut rules = Self::default();
        for name in names {
            match Self::EACH.iter().find(|(each, _)| each == name) {
                Some((_, off)) => off(&mut rules),
                None => panic!("{name} is no rule"),
            }
        }
        rules
    }
}
