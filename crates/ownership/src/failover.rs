//! Which primaries keep the store's data, and for how long each has.
//!
//! A new primary may have lost the last writes of the one before. Owners then re-assert their
//! sessions, and until they had time to, no other node claims one. [`FailoverTracker`] receives
//! the primaries that answered. It returns the generation and the stabilisation of each session's
//! primary. It reads no clock and calls no store.

use crate::machine::{Claimable, Stabilisation};
use crate::rules::rule;
use crate::{Primary, PrimaryId};

/// The id of a store that keeps everything in the node's own process, and so never fails over.
const IN_PROCESS: PrimaryId = PrimaryId(0);

/// What this node knows of the primary that keeps a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Rises with each new primary; 0 before the first one.
    pub number: u64,
    /// The stabilisation of the session's primary and of the primary of the leases, which decide
    /// whether a node is gone.
    pub stabilisation: Stabilisation,
    /// In which generations a node other than the owner may have claimed the session.
    pub claimable: Claimable,
    /// The primary of which this is known. `None`: the primary of the session is unknown, or the
    /// store never fails over.
    pub primary: Option<PrimaryId>,
}

/// The result of an observation of the primaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// A primary is new.
    pub any_new: bool,
    /// Others were there before it: the store has failed over.
    pub failed_over: bool,
}

/// The primaries that this node knows; as many as the store has.
#[derive(Clone, Debug)]
pub struct FailoverTracker {
    /// How long stabilisation takes, in milliseconds.
    stabilisation_ms: u64,
    known: Vec<KnownPrimary>,
    newest: u64,
}

#[derive(Clone, Debug)]
struct KnownPrimary {
    primary: Primary,
    generation: u64,
    /// When it was first seen, in milliseconds of the node's clock.
    since: u64,
    /// The newest generation of a primary before it in which sessions could be claimed; 0 for none.
    claimable_before: u64,
}

impl FailoverTracker {
    /// Of a store that never fails over, as far as the node is concerned.
    pub fn never() -> Self {
        let mut tracker = Self::new(0);
        tracker.observe(vec![Primary::of_everything(IN_PROCESS)], 0);
        tracker
    }

    /// No primary is known. Stabilisation takes `stabilisation_ms` milliseconds.
    pub fn new(stabilisation_ms: u64) -> Self {
        Self { stabilisation_ms, known: Vec::new(), newest: 0 }
    }

    /// Records the primaries that answered. The others stay unchanged until a new primary has
    /// their slots: a slow primary has lost nothing.
    pub fn observe(&mut self, primaries: Vec<Primary>, now_ms: u64) -> Observed {
        let before = std::mem::take(&mut self.known);
        let mut any_new = false;
        let is_missing = |known: &&KnownPrimary| {
            let is_there = primaries.iter().any(|primary| primary.id == known.primary.id);
            !is_there && !known.primary.is_replaced_by(&primaries)
        };
        let missing: Vec<_> = before.iter().filter(is_missing).cloned().collect();
        for primary in primaries {
            let known = before.iter().find(|known| known.primary.id == primary.id);
            let (generation, since, claimable_before) = match known {
                Some(known) => (known.generation, known.since, known.claimable_before),
                None if conversation::mutant!("failover.never_noticed") && self.newest > 0 => {
                    (self.newest, 0, 0)
                }
                None => {
                    any_new = true;
                    self.newest += 1;
                    let former = before.iter().filter(|known| known.primary.overlaps(&primary));
                    let claimable = former.map(|known| self.claimable(known, now_ms).newest);
                    (self.newest, now_ms, claimable.max().unwrap_or(0))
                }
            };
            self.known.push(KnownPrimary { primary, generation, since, claimable_before });
        }
        // Last: a slot that was moved away from one of these is found at its new primary.
        self.known.extend(missing);
        Observed { any_new, failed_over: any_new && !before.is_empty() }
    }

    /// The generation of the primary that keeps the session of this slot; `leases`: the slot of
    /// the nodes' leases. Slots are computed only where there is more than one primary.
    pub fn generation(
        &self,
        session: impl Fn() -> u16,
        leases: impl Fn() -> u16,
        now_ms: u64,
    ) -> Generation {
        let Some(holder) = self.holder(session) else {
            // A slot on its way from one primary to another is soon found again.
            return Generation {
                number: self.newest,
                stabilisation: Stabilisation::First,
                claimable: Claimable::default(),
                primary: None,
            };
        };
        let stabilisation =
            self.stabilisation_of(holder, now_ms).min(self.leases_stabilisation(leases, now_ms));
        Generation {
            number: holder.generation,
            stabilisation,
            claimable: self.claimable(holder, now_ms),
            primary: Some(holder.primary.id).filter(|id| *id != IN_PROCESS),
        }
    }

    /// The number of the newest generation of any primary: it rises with each new primary.
    pub fn newest(&self) -> u64 {
        self.newest
    }

    /// The primaries that this node takes into account.
    pub fn primaries(&self) -> Vec<PrimaryId> {
        self.known.iter().map(|known| known.primary.id).collect()
    }

    /// Is the stabilisation of all primaries done?
    pub fn is_stable(&self, now_ms: u64) -> bool {
        self.known.iter().all(|known| self.stabilisation_of(known, now_ms) == Stabilisation::Done)
    }

    /// Does an expired lease prove that its node may not act? Not before the primary of the
    /// leases has kept them for as long as a lease lasts: it may have lost the last renewals, or
    /// its clock may be ahead of its predecessor's.
    pub fn lapse_proves(&self, leases: impl Fn() -> u16, now_ms: u64, lease_ms: u64) -> bool {
        self.holder(leases).is_some_and(|holder| {
            holder.primary.id == IN_PROCESS
                || conversation::mutant!("failover.a_lapse_proves_at_once")
                || now_ms.saturating_sub(holder.since) >= lease_ms
                || !rule!(WaitsOutLeases)
        })
    }

    fn holder(&self, slot: impl Fn() -> u16) -> Option<&KnownPrimary> {
        self.known.iter().find(|known| known.primary.holds_slot(&slot))
    }

    fn leases_stabilisation(&self, leases: impl Fn() -> u16, now_ms: u64) -> Stabilisation {
        self.holder(leases)
            .map_or(Stabilisation::First, |holder| self.stabilisation_of(holder, now_ms))
    }

    fn claimable(&self, known: &KnownPrimary, now_ms: u64) -> Claimable {
        let former = known.claimable_before;
        let is_claimable = self.stabilisation_of(known, now_ms) != Stabilisation::First;
        Claimable { newest: if is_claimable { known.generation } else { former }, former }
    }

    fn stabilisation_of(&self, known: &KnownPrimary, now_ms: u64) -> Stabilisation {
        let since = now_ms.saturating_sub(known.since);
        let at_once = conversation::mutant!("failover.no_stabilisation");
        if known.primary.id == IN_PROCESS || since >= self.stabilisation_ms || at_once {
            Stabilisation::Done
        } else if since >= self.stabilisation_ms / 2 {
            Stabilisation::Second
        } else {
            Stabilisation::First
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u16 = 5_000;

    fn primary(id: u128) -> Vec<Primary> {
        vec![Primary::of_everything(PrimaryId(id))]
    }

    /// The primaries of these ids, each with the half of the slots that it keeps.
    fn halves(primaries: &[(u128, (u16, u16))]) -> Vec<Primary> {
        let primary = |(id, slots): &(u128, _)| Primary::of_slots(PrimaryId(*id), vec![*slots]);
        primaries.iter().map(primary).collect()
    }

    const LOWER: (u16, u16) = (0, 8_191);
    const UPPER: (u16, u16) = (8_192, 16_383);

    fn generation(tracker: &FailoverTracker, now: u64) -> Generation {
        tracker.generation(|| SLOT, || UPPER.0, now)
    }

    fn seen(tracker: &FailoverTracker, now: u64) -> (u64, Stabilisation) {
        let generation = generation(tracker, now);
        (generation.number, generation.stabilisation)
    }

    fn tracker() -> FailoverTracker {
        FailoverTracker::new(3_000)
    }

    const FIRST: Observed = Observed { any_new: true, failed_over: false };
    const NOTHING: Observed = Observed { any_new: false, failed_over: false };
    const FAILOVER: Observed = Observed { any_new: true, failed_over: true };

    #[test]
    fn a_new_primary_is_stable_after_two_halves() {
        let mut tracker = tracker();
        assert_eq!(tracker.observe(primary(7), 10_000), FIRST);
        assert_eq!(tracker.observe(primary(7), 11_000), NOTHING);
        for (now, stabilisation) in [
            (10_000, Stabilisation::First),
            (11_499, Stabilisation::First),
            (11_500, Stabilisation::Second),
            (13_000, Stabilisation::Done),
        ] {
            assert_eq!(seen(&tracker, now), (1, stabilisation), "at {now}");
        }
        assert_eq!(tracker.observe(primary(8), 20_000), FAILOVER);
        assert_eq!(seen(&tracker, 20_000), (2, Stabilisation::First));
        assert!(!tracker.is_stable(22_000) && tracker.is_stable(23_000));
    }

    #[test]
    fn a_generation_is_claimable_once_its_first_half_is_over_also_after_the_next_failover() {
        let mut tracker = tracker();
        let claimable = |tracker: &FailoverTracker, now| {
            let Claimable { newest, former } = generation(tracker, now).claimable;
            (newest, former)
        };
        tracker.observe(primary(7), 10_000);
        assert_eq!(claimable(&tracker, 11_499), (0, 0));
        assert_eq!(claimable(&tracker, 11_500), (1, 0));
        tracker.observe(primary(8), 20_000);
        assert_eq!(claimable(&tracker, 20_000), (1, 1));
        // Its first half is never over.
        tracker.observe(primary(9), 21_000);
        assert_eq!(claimable(&tracker, 21_000), (1, 1));
        assert_eq!(claimable(&tracker, 22_500), (3, 1));
        tracker.observe(primary(10), 22_500);
        assert_eq!(claimable(&tracker, 22_500), (3, 3));
    }

    /// If only the leases stabilise again, others may have claimed the session before.
    #[test]
    fn a_failover_of_other_slots_makes_nothing_unclaimable() {
        let mut tracker = tracker();
        tracker.observe(halves(&[(1, LOWER), (2, UPPER)]), 10_000);
        tracker.observe(halves(&[(4, LOWER), (2, UPPER)]), 20_000);
        tracker.observe(halves(&[(4, LOWER), (3, UPPER)]), 21_600);
        let Generation { number, stabilisation, claimable, .. } = generation(&tracker, 21_600);
        assert_eq!((number, stabilisation), (3, Stabilisation::First));
        // Of the first primary of its slots: that of the other slots counts for nothing.
        assert_eq!(claimable, Claimable { newest: 3, former: 1 });
    }

    #[test]
    fn a_lease_that_is_gone_proves_nothing_before_a_lease_has_passed() {
        let mut tracker = tracker();
        let proves = |tracker: &FailoverTracker, now| tracker.lapse_proves(|| SLOT, now, 6_000);
        assert!(!proves(&tracker, 99_000));
        tracker.observe(primary(7), 10_000);
        assert!(!proves(&tracker, 15_999) && proves(&tracker, 16_000));
        tracker.observe(primary(8), 20_000);
        assert!(!proves(&tracker, 25_999) && proves(&tracker, 26_000));
    }

    #[test]
    fn memory_never_fails_over() {
        let mut tracker = tracker();
        tracker.observe(primary(0), 0);
        assert_eq!(seen(&tracker, 0), (1, Stabilisation::Done));
    }

    #[test]
    fn before_a_primary_is_known_nothing_is_stable() {
        assert_eq!(seen(&tracker(), 0), (0, Stabilisation::First));
    }

    #[test]
    fn a_session_is_stable_with_the_leases_of_the_nodes() {
        let mut tracker = tracker();
        tracker.observe(halves(&[(1, LOWER), (2, UPPER)]), 10_000);
        assert_eq!(tracker.observe(halves(&[(1, LOWER), (3, UPPER)]), 20_000), FAILOVER);
        assert_eq!(seen(&tracker, 20_000), (1, Stabilisation::First));
        assert_eq!(seen(&tracker, 23_000), (1, Stabilisation::Done));
    }

    #[test]
    fn a_primary_that_does_not_answer_keeps_its_generation_until_another_has_its_slots() {
        let mut tracker = tracker();
        assert_eq!(tracker.observe(halves(&[(1, LOWER), (2, UPPER)]), 10_000), FIRST);
        let before = generation(&tracker, 20_000);
        assert_eq!(before.stabilisation, Stabilisation::Done);
        for answers in [&[(1, LOWER)][..], &[(2, UPPER)], &[(1, LOWER), (2, UPPER)]] {
            assert_eq!(tracker.observe(halves(answers), 20_000), NOTHING, "{answers:?}");
            assert_eq!(generation(&tracker, 20_000), before, "{answers:?}");
            assert!(tracker.is_stable(20_000));
        }
        assert_eq!(tracker.observe(halves(&[(3, LOWER), (2, UPPER)]), 30_000), FAILOVER);
        assert_eq!(tracker.primaries(), [PrimaryId(3), PrimaryId(2)]);
        assert!(!tracker.is_stable(30_000));
    }

    #[test]
    fn a_slot_that_moved_away_from_a_primary_that_does_not_answer_is_kept_by_its_new_one() {
        let mut tracker = tracker();
        tracker.observe(halves(&[(1, LOWER), (2, UPPER)]), 10_000);
        assert_eq!(tracker.observe(halves(&[(2, (4_000, 16_383))]), 20_000), NOTHING);
        assert_eq!(generation(&tracker, 20_000).primary, Some(PrimaryId(2)));
        let before = tracker.generation(|| 3_999, || UPPER.0, 20_000).primary;
        assert_eq!(before, Some(PrimaryId(1)));
        assert_eq!(tracker.primaries().len(), 2);
    }
}
