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
    /// Whoever holds a lease takes back what it brought to a node whose lease is over.
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
    /// What became of the tenure: its own rules.
    pub tenure: ownership::tenure::Rules,
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
            leaves_lapsed: true,
            self_claims: true,
            claims_own_draining: true,
            one_claim: true,
            marks_again: true,
            numbers_attachments: true,
            ends_before_word: true,
            remembers_ends: true,
            tenure: ownership::tenure::Rules::default(),
        }
    }
}

/// Switches one rule off.
type Off = fn(&mut Rules);

impl Rules {
    /// Every rule by its name.
    pub const EACH: &[(&str, Off)] = &[
        ("told_primary", |rules| rules.told_primary = false),
        ("settles", |rules| rules.settles = false),
        ("waits_out_leases", |rules| rules.waits_out_leases = false),
        ("claims_by_lease", |rules| rules.claims_by_lease = false),
        ("unknown_by_lease", |rules| rules.unknown_by_lease = false),
        ("acts_by_lease", |rules| rules.acts_by_lease = false),
        ("epochs", |rules| rules.epochs = false),
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
        ("tenure.claims_after_lapse", |rules| rules.tenure.claims_after_lapse = false),
        ("tenure.reasserts_after_failover", |rules| rules.tenure.reasserts_after_failover = false),
        ("tenure.reasserts_missing", |rules| rules.tenure.reasserts_missing = false),
        ("tenure.ends_missing_where_claimable", |rules| {
            rules.tenure.ends_missing_where_claimable = false
        }),
        ("tenure.asks_where_rivalled", |rules| rules.tenure.asks_where_rivalled = false),
        ("tenure.reasserts_fallen_back", |rules| rules.tenure.reasserts_fallen_back = false),
        ("tenure.knows_late_claims", |rules| rules.tenure.knows_late_claims = false),
        ("tenure.resends_whole", |rules| rules.tenure.resends_whole = false),
        ("tenure.release_waits", |rules| rules.tenure.release_waits = false),
        ("tenure.stops_when_deposed", |rules| rules.tenure.stops_when_deposed = false),
        ("tenure.release_is_last", |rules| rules.tenure.release_is_last = false),
        ("tenure.releases_settled", |rules| rules.tenure.releases_settled = false),
        ("tenure.claims_late_in_settling", |rules| rules.tenure.claims_late_in_settling = false),
        ("tenure.reasserts_end", |rules| rules.tenure.reasserts_end = false),
        ("tenure.saves_before_it_appends", |rules| rules.tenure.saves_before_it_appends = false),
        ("tenure.refreshes", |rules| rules.tenure.refreshes = false),
        ("tenure.acts_when_sure", |rules| rules.tenure.acts_when_sure = false),
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
