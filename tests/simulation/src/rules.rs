//! What the simulated nodes keep to, each to be switched off alone.
//!
//! The product's own rules, [`ownership::Rule`], can be switched off only in a build with the
//! feature `mutants`.

#[cfg(feature = "mutants")]
use ownership::{Rule, RuleSet};

/// The rules of the protocol: those of the model around the code under test, and the code's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Claims and releases go only to a primary that the node was told of, and a session
    /// that another does not have is not missing.
    pub told_primary: bool,
    /// A node acts only while its lease holds.
    pub acts_by_lease: bool,
    /// A lost link makes a node renew at once.
    pub renews_on_loss: bool,
    /// A node to which another node still has a link is not marked dead.
    pub links_save: bool,
    /// A node that holds a lease takes back what it sent to a node whose lease is over.
    pub leaves_lapsed: bool,
    /// A node that the record names, and that has no such session, claims it from itself.
    pub self_claims: bool,
    /// One claim for a session and node at a time; others wait for it.
    pub one_claim: bool,
    /// Frames and calls of a former attachment are dropped.
    pub numbers_attachments: bool,
    /// An owner tells its session that the end is durable only when the store has said so.
    pub ends_before_word: bool,
    /// A node keeps what says that a session is over, and writes it anew after a failover.
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
    /// Every rule of the model by its name.
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

    /// All rules but these.
    pub fn without(names: &[&str]) -> Self {
        let mut rules = Self::default();
        for name in names {
            let is_known = rules.switch_off_in_the_model(name) || rules.switch_off(name);
            assert!(is_known, "{name} is no rule, or one that needs the feature `mutants`");
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
