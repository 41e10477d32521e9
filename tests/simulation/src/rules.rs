//! The rules that the simulated nodes follow; each can be switched off alone.
//!
//! The product's own rules, [`ownership::Rule`], can be switched off only in a build with the
//! feature `mutants`.

#[cfg(feature = "mutants")]
use ownership::{Rule, RuleSet};

/// The rules of the protocol: those of the model, and those of the code under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A node sends claims and releases only to the primary that it knows, and accepts only from
    /// this primary that a session or a lease does not exist.
    pub told_primary: bool,
    /// A node acts only while its lease holds.
    pub acts_by_lease: bool,
    /// A node renews at once when it loses a link.
    pub renews_on_loss: bool,
    /// A node to which another node still has a link is not marked dead.
    pub links_save: bool,
    /// A node that holds a lease withdraws the requests that it sent to a node whose lease is over.
    pub leaves_lapsed: bool,
    /// A node that the record names, but that does not have the session, claims it from itself.
    pub self_claims: bool,
    /// A node has at most one claim for a session at a time; other requests wait for it.
    pub one_claim: bool,
    /// Frames and calls of a former attachment are dropped.
    pub numbers_attachments: bool,
    /// An owner reports to its session that the end is durable only after the store has
    /// acknowledged it.
    pub ends_before_word: bool,
    /// A node keeps the tombstones of ended sessions, and writes them again after a failover.
    pub remembers_ends: bool,
    /// The rules of the code under test.
    #[cfg(feature = "mutants")]
    pub ownership: RuleSet,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            told_primary: true,
            acts_by_lease: true,
            renews_on_loss: true,
            links_save: true,
            leaves_lapsed: true,
            self_claims: true,
            one_claim: true,
            numbers_attachments: true,
            ends_before_word: true,
            remembers_ends: true,
            #[cfg(feature = "mutants")]
            ownership: RuleSet::default(),
        }
    }
}

/// Switches one rule off.
type Off = fn(&mut Rules);

impl Rules {
    /// Every rule of the model, by its name.
    const OF_THE_MODEL: &[(&str, Off)] = &[
        ("told_primary", |rules| rules.told_primary = false),
        ("acts_by_lease", |rules| rules.acts_by_lease = false),
        ("renews_on_loss", |rules| rules.renews_on_loss = false),
        ("links_save", |rules| rules.links_save = false),
        ("leaves_lapsed", |rules| rules.leaves_lapsed = false),
        ("self_claims", |rules| rules.self_claims = false),
        ("one_claim", |rules| rules.one_claim = false),
        ("numbers_attachments", |rules| rules.numbers_attachments = false),
        ("ends_before_word", |rules| rules.ends_before_word = false),
        ("remembers_ends", |rules| rules.remembers_ends = false),
    ];

    /// The name of every rule that this build can switch off.
    pub fn names() -> Vec<&'static str> {
        let names = Self::OF_THE_MODEL.iter().map(|(name, _)| *name);
        #[cfg(feature = "mutants")]
        let names = names.chain(Rule::ALL.iter().map(|rule| rule.name()));
        names.collect()
    }

    /// All rules except these.
    pub fn without(names: &[&str]) -> Self {
        let mut rules = Self::default();
        for name in names {
            let is_known = rules.switch_off_in_the_model(name) || rules.switch_off(name);
            assert!(is_known, "{name} is no rule, or needs the feature `mutants`");
        }
        rules
    }

    fn switch_off_in_the_model(&mut self, name: &str) -> bool {
        let found = Self::OF_THE_MODEL.iter().find(|(each, _)| *each == name);
        found.map(|(_, off)| off(self)).is_some()
    }

    #[cfg(feature = "mutants")]
    fn switch_off(&mut self, name: &str) -> bool {
        let found = Rule::ALL.iter().find(|rule| rule.name() == name);
        found.map(|rule| self.ownership = self.ownership.without(*rule)).is_some()
    }

    #[cfg(not(feature = "mutants"))]
    fn switch_off(&mut self, _name: &str) -> bool {
        false
    }
}
