//! The rules of the protocol that a test can switch off, one by one, to show that each is needed.
//!
//! Only builds with the feature `mutants` can switch a rule off, and no release build has that
//! feature: without it [`rule!`] is the literal `true`. A switch applies to everything that the
//! thread decides from then on, as [`conversation::select_mutant`] does for a fault.

#[cfg(feature = "mutants")]
use std::{cell::Cell, fmt};

/// Does this rule hold? Always `true` without the feature `mutants`.
#[cfg(feature = "mutants")]
macro_rules! rule {
    ($rule:ident) => {
        $crate::Rule::$rule.holds()
    };
}

/// Does this rule hold? Always `true` without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
macro_rules! rule {
    ($rule:ident) => {
        true
    };
}

pub(crate) use rule;

/// Writes each rule once: its documentation, its variant and its name.
#[cfg(feature = "mutants")]
macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $rule:ident = $name:literal,)+) => {
        /// A rule of the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $($(#[doc = $doc])+ $rule,)+
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$rule),+];

            /// The name by which a test selects the rule.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$rule => $name,)+
                }
            }
        }
    };
}

#[cfg(feature = "mutants")]
rules! {
    /// After a lapse of its node's lease the owner acts only once it has claimed the session again.
    ClaimsAfterLapse = "ownership.claims_after_lapse",
    /// After a failover the owner re-asserts record and log without being asked to.
    ReassertsAfterFailover = "ownership.reasserts_after_failover",
    /// A session that the store has lost is re-asserted.
    ReassertsMissing = "ownership.reasserts_missing",
    /// A session that is missing, where no failover explains it, is over if another node could
    /// have claimed it: after a lapse of its node's lease, or after a release that was sent
    /// before. That node may have ended it.
    EndsMissingWhereClaimable = "ownership.ends_missing_where_claimable",
    /// An owner that another may have replaced, in a failover before the last, asks the store
    /// before it re-asserts the session.
    AsksWhereRivalled = "ownership.asks_where_rivalled",
    /// A record that fell back to an earlier token than the owner's is replaced.
    ReassertsFallenBack = "ownership.reasserts_fallen_back",
    /// A record that names this node under another token is a late claim of its own.
    KnowsLateClaims = "ownership.knows_late_claims",
    /// Entries that were not acknowledged are sent again whole, in order.
    ResendsWhole = "ownership.resends_whole",
    /// An owner that was deposed stops.
    StopsWhenDeposed = "ownership.stops_when_deposed",
    /// Nothing else is done after a release was sent.
    ReleaseIsLast = "ownership.release_is_last",
    /// Nothing is released during stabilisation.
    ReleasesWhenStable = "ownership.releases_when_stable",
    /// A release waits until the store holds everything.
    ReleaseWaits = "ownership.release_waits",
    /// In the first half of stabilisation nothing is claimed: other owners re-assert first.
    ClaimsLateInStabilisation = "ownership.claims_late_in_stabilisation",
    /// The end of a session is written again where the store has lost it.
    ReassertsEnd = "ownership.reasserts_end",
    /// An entry is appended only when the record holds the state that changed with it.
    SavesBeforeItAppends = "ownership.saves_before_it_appends",
    /// A record is refreshed before it expires.
    Refreshes = "ownership.refreshes",
    /// Once others may claim after a failover, the owner acts only if the store has confirmed
    /// since that it names this owner.
    ActsWhenSure = "ownership.acts_when_sure",
    /// After a failover, and after its start, a node claims nothing for a while, and reports no
    /// session as unknown.
    WaitsOutStabilisation = "waits_out_stabilisation",
    /// After a failover, and after its start, a lease that is gone proves nothing for the time
    /// that a lease lasts.
    WaitsOutLeases = "waits_out_leases",
    /// A node claims only while its own lease holds: when it sends the claim and when it receives
    /// the answer.
    ClaimsByLease = "claims_by_lease",
    /// A node reports a session as unknown only while its own lease holds.
    UnknownByLease = "unknown_by_lease",
    /// A draining node claims a session whose record names that node, and releases it.
    ClaimsOwnDraining = "claims_own_draining",
    /// Each loss of the lease begins a generation, in which every session is claimed again.
    LeaseGenerations = "lease_generations",
    /// A request that a lost owner may have begun is sent to the next owner marked so.
    MarksAgain = "marks_again",
}

#[cfg(feature = "mutants")]
thread_local! {
    static SELECTED: Cell<RuleSet> = const { Cell::new(RuleSet { off: 0 }) };
}

#[cfg(feature = "mutants")]
impl Rule {
    /// Does the rule hold in this thread?
    pub(crate) fn holds(self) -> bool {
        SELECTED.get().contains(self)
    }
}

/// The rules that hold; all of them by default.
#[cfg(feature = "mutants")]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// A bit for each rule that is switched off.
    off: u32,
}

#[cfg(feature = "mutants")]
impl RuleSet {
    /// These rules but this one.
    #[must_use]
    pub fn without(self, rule: Rule) -> Self {
        Self { off: self.off | 1 << rule as u32 }
    }

    /// Is this rule one of them?
    pub fn contains(self, rule: Rule) -> bool {
        self.off & (1 << rule as u32) == 0
    }

    /// Makes these the rules of everything that this thread decides from now on.
    pub fn select(self) {
        SELECTED.set(self);
    }
}

/// Each rule by its name without its area, and whether it holds.
#[cfg(feature = "mutants")]
impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_struct("RuleSet");
        for rule in Rule::ALL {
            let name = rule.name();
            set.field(name.strip_prefix("ownership.").unwrap_or(name), &self.contains(*rule));
        }
        set.finish()
    }
}
