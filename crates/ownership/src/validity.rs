//! The validity of this node's lease: whether the node may act as an owner now.
//!
//! [`LeaseValidity`] receives renewals, lost links and the end of the lease, and returns the
//! generation of the lease while the node may act. Every thread calls it before each action for a
//! session, so its state is atomic numbers. It reads no clock: the caller passes the time. One
//! task renews; every other method may be called from any thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::rules::rule;

/// The timing of leases, in milliseconds; the same at every node.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long the store keeps a lease after its renewal.
    pub lease_ms: u64,
    /// How long a node waits from the answer to one renewal until the next.
    pub renew_ms: u64,
    /// How much earlier than the store a node considers its lease expired: more than clocks
    /// differ.
    pub margin_ms: u64,
}

impl Timing {
    /// How long a renewal is valid, counted from when it was sent.
    fn span_ms(self) -> u64 {
        self.lease_ms.saturating_sub(self.margin_ms)
    }

    /// The longest time from one answer to the next, unless the node cannot reach the store.
    /// While one node gets such answers, no other node's lease expires for lack of them.
    fn answer_interval_ms(self) -> u64 {
        self.renew_ms.saturating_add(self.margin_ms)
    }

    /// How long a node waits for the answer to a renewal: if none arrives, there is time for a
    /// second renewal before the lease expires.
    pub fn answer_ms(self) -> u64 {
        self.lease_ms / 3
    }

    /// How long a node waits after a renewal that failed before it sends the next.
    pub fn retry_ms(self) -> u64 {
        self.renew_ms / 4
    }

    /// A live node renews within this time after the store can be reached again.
    fn return_ms(self) -> u64 {
        self.answer_ms() + self.retry_ms() + self.margin_ms / 4
    }
}

/// Permission to act as an owner, for as long as the lease in the store is certainly valid.
///
/// All times are milliseconds of this node's clock.
#[derive(Debug)]
pub struct LeaseValidity {
    timing: Timing,
    /// When the permission ends; 0 before the first renewal.
    until_ms: AtomicU64,
    /// When the newest successful renewal was answered; 0 before the first one.
    answered_ms: AtomicU64,
    /// When the store could be reached again after an outage, or after this process was
    /// suspended; 0: neither occurred.
    returned_ms: AtomicU64,
    /// How often the lease was lost.
    generation: AtomicU64,
    /// How many lost links gave reason to fear that a peer has this node marked dead, and how
    /// many of them a renewal has refuted.
    doubts: AtomicU64,
    dispelled: AtomicU64,
    /// The number of the newest renewal.
    renewals: AtomicU64,
    /// The number of the newest renewal that is known to have succeeded.
    acknowledged: AtomicU64,
    given_up: AtomicBool,
    dead: AtomicBool,
}

/// A renewal in flight.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    /// Rises with each renewal of this incarnation.
    pub number: u64,
    /// The newest renewal that was answered before this one was sent; 0: none.
    pub acknowledged: u64,
    sent_ms: u64,
    /// The doubts that it refutes if it succeeds.
    doubts: u64,
    /// The generation as it was sent, where the node could act.
    before: Option<u64>,
}

/// How the lease was lost, as the next renewal shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// It expired before the answer arrived.
    pub lapsed: bool,
    /// The store still held it.
    pub was_there: bool,
}

/// The consequences of a successful renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The lease had been lost before, and a generation began.
    pub lost: Option<Lost>,
    /// Sessions may have work: the node may act again, or in another generation.
    pub is_news: bool,
}

impl LeaseValidity {
    /// A lease that was never held.
    pub fn new(timing: Timing) -> Self {
        Self {
            timing,
            until_ms: AtomicU64::new(0),
            answered_ms: AtomicU64::new(0),
            returned_ms: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            doubts: AtomicU64::new(0),
            dispelled: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
            dead: AtomicBool::new(false),
        }
    }

    /// A lease that is always valid: for a node that shares its sessions with no other.
    pub fn permanent(timing: Timing) -> Self {
        let always = || AtomicU64::new(u64::MAX);
        Self { until_ms: always(), answered_ms: always(), ..Self::new(timing) }
    }

    /// The generation of the lease, while the node may act. What was claimed in an earlier
    /// generation is claimed again before the node acts for it.
    pub fn generation_if_valid(&self, now_ms: u64) -> Option<u64> {
        // In this order: a new end is stored only after the new generation is.
        let is_valid = now_ms < self.until_ms.load(Ordering::Acquire)
            || conversation::mutant!("lease.never_over");
        let is_over = self.given_up.load(Ordering::Acquire) || self.dead.load(Ordering::Acquire);
        (is_valid && !is_over && !self.is_doubted()).then(|| self.generation())
    }

    /// The generation, whether or not the node may act.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// A renewal is sent now. One task renews. It waits for the outcome of each renewal, or gives
    /// it up, before the next.
    pub fn begin_renewal(&self, now_ms: u64) -> Renewal {
        Renewal {
            number: self.renewals.fetch_add(1, Ordering::Relaxed) + 1,
            acknowledged: self.acknowledged.load(Ordering::Relaxed),
            sent_ms: now_ms,
            doubts: self.doubts.load(Ordering::Acquire),
            before: self.generation_if_valid(now_ms),
        }
    }

    /// A renewal succeeded: the store had no death mark of this node. `was_there`: the store held
    /// the lease without a gap since the renewal that this one acknowledged.
    pub fn renewed(&self, now_ms: u64, renewal: Renewal, was_there: bool) -> Renewed {
        self.acknowledged.fetch_max(renewal.number, Ordering::Relaxed);
        let until = self.until_ms.load(Ordering::Acquire);
        let lapsed = now_ms >= until;
        let is_lost = until != 0
            && (lapsed || !was_there)
            && !conversation::mutant!("lease.a_lapse_begins_no_generation");
        if until != 0 && (is_lost || self.is_out_of_reach(now_ms)) {
            self.returned_ms.store(now_ms, Ordering::Release);
        }
        self.answered_ms.store(now_ms, Ordering::Release);
        if is_lost && rule!(LeaseGenerations) {
            // Another node may have seen this one without a lease.
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        self.until_ms
            .store(renewal.sent_ms.saturating_add(self.timing.span_ms()), Ordering::Release);
        let was_doubted =
            self.dispelled.fetch_max(renewal.doubts, Ordering::AcqRel) < renewal.doubts;
        let after = self.generation_if_valid(now_ms);
        Renewed {
            lost: is_lost.then_some(Lost { lapsed, was_there }),
            is_news: after.is_some() && (was_doubted || after != renewal.before),
        }
    }

    /// Does another node's expired lease prove that this other node does not renew it? Not while
    /// this node cannot reach the store, nor right after that: as far as is known, the other node
    /// could not reach it either.
    pub fn lapse_proves(&self, now_ms: u64) -> bool {
        // In this order: a recovery is stored before the answer that shows it.
        let is_out_of_reach = self.is_out_of_reach(now_ms);
        let returned = self.returned_ms.load(Ordering::Acquire);
        let has_waited =
            returned == 0 || now_ms.saturating_sub(returned) >= self.timing.return_ms();
        (has_waited && !is_out_of_reach) || conversation::mutant!("lease.the_others_lapsed_alone")
    }

    fn is_out_of_reach(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.answered_ms.load(Ordering::Acquire))
            > self.timing.answer_interval_ms()
    }

    /// A link to a peer was lost: the peer may be about to have this node marked dead. The node
    /// does not act until a renewal that is sent from now on succeeds. While the store cannot be
    /// reached the doubt stays: other nodes may be able to reach it.
    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::AcqRel);
    }

    /// Is there a doubt that no renewal has refuted?
    pub fn is_doubted(&self) -> bool {
        self.dispelled.load(Ordering::Acquire) < self.doubts.load(Ordering::Acquire)
    }

    /// When the newest renewal was sent that succeeded, if one did.
    pub fn renewed_at(&self) -> Option<u64> {
        let until = self.until_ms.load(Ordering::Acquire);
        (until != 0).then(|| until.saturating_sub(self.timing.span_ms()))
    }

    /// When the permission ends if the lease is not renewed; 0 before the first renewal.
    pub fn until_ms(&self) -> u64 {
        self.until_ms.load(Ordering::Acquire)
    }

    /// The node gives up its lease.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Is the node leaving?
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// The incarnation was marked dead and never acts again.
    pub fn end_permission(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Was the incarnation marked dead?
    pub fn has_ended(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 100_000;

    /// The defaults: a renewal is good for 5 s.
    const TIMING: Timing = Timing { lease_ms: 6_000, renew_ms: 1_000, margin_ms: 1_000 };

    /// A lease of 5 s that was renewed at [`NOW`].
    fn renewed() -> LeaseValidity {
        let lease = LeaseValidity::new(TIMING);
        assert_eq!(renew(&lease, NOW, false), Renewed { lost: None, is_news: true });
        lease
    }

    fn renew(lease: &LeaseValidity, now_ms: u64, was_there: bool) -> Renewed {
        let renewal = lease.begin_renewal(now_ms);
        lease.renewed(now_ms, renewal, was_there)
    }

    #[test]
    fn a_node_does_not_act_before_the_first_renewal() {
        let lease = LeaseValidity::new(TIMING);
        assert_eq!(lease.generation_if_valid(0), None);
        assert_eq!(lease.renewed_at(), None);
    }

    #[test]
    fn the_permission_counts_from_when_the_renewal_was_sent() {
        let lease = LeaseValidity::new(TIMING);
        let renewal = lease.begin_renewal(NOW);
        lease.renewed(NOW + 2_000, renewal, false);
        assert_eq!(lease.generation_if_valid(NOW + 2_000), Some(0));
        assert_eq!(lease.generation_if_valid(NOW + 4_999), Some(0));
        assert_eq!(lease.generation_if_valid(NOW + 5_000), None);
        assert_eq!(lease.renewed_at(), Some(NOW));
    }

    #[test]
    fn a_lapse_begins_a_generation_and_a_renewal_in_time_does_not() {
        let lease = renewed();
        assert_eq!(renew(&lease, NOW + 4_999, true), Renewed { lost: None, is_news: false });
        assert_eq!(lease.generation_if_valid(NOW + 4_999), Some(0));
        let lost = Some(Lost { lapsed: true, was_there: true });
        assert_eq!(renew(&lease, NOW + 9_999, true), Renewed { lost, is_news: true });
        assert_eq!(lease.generation_if_valid(NOW + 9_999), Some(1));
    }

    #[test]
    fn after_the_store_was_out_of_reach_the_others_have_time_to_renew() {
        let lease = LeaseValidity::new(TIMING);
        assert!(!lease.lapse_proves(NOW));
        renew(&lease, NOW, false);
        assert!(lease.lapse_proves(NOW + 2_000) && !lease.lapse_proves(NOW + 2_001));
        let back = NOW + 2_001;
        renew(&lease, back, true);
        assert!(!lease.lapse_proves(back));
        // A regular renewal does not prolong that.
        renew(&lease, back + 1_000, true);
        renew(&lease, back + 2_000, true);
        assert!(!lease.lapse_proves(back + 2_499) && lease.lapse_proves(back + 2_500));
        renew(&lease, back + 3_000, false);
        renew(&lease, back + 4_000, true);
        renew(&lease, back + 5_000, true);
        assert!(!lease.lapse_proves(back + 5_499) && lease.lapse_proves(back + 5_500));
    }

    #[test]
    fn a_store_that_is_slow_is_not_out_of_reach() {
        // A lease lasts for two renewals and the margin.
        let slow = Timing { renew_ms: 2_500, ..TIMING };
        let lease = LeaseValidity::new(slow);
        renew(&lease, NOW, false);
        let mut now = NOW;
        for _ in 0..5 {
            let renewal = lease.begin_renewal(now + 2_500);
            now += 3_500;
            lease.renewed(now, renewal, true);
            assert!(lease.lapse_proves(now));
        }
    }

    #[test]
    fn a_lease_that_the_store_forgot_begins_a_generation() {
        let lease = renewed();
        let lost = Some(Lost { lapsed: false, was_there: false });
        assert_eq!(renew(&lease, NOW, false), Renewed { lost, is_news: true });
        assert_eq!(lease.generation_if_valid(NOW), Some(1));
    }

    #[test]
    fn a_node_marked_dead_never_acts_again() {
        let lease = renewed();
        lease.end_permission();
        renew(&lease, NOW, true);
        assert_eq!(lease.generation_if_valid(NOW), None);
        assert!(lease.has_ended());
    }

    #[test]
    fn a_node_that_leaves_acts_no_more() {
        let lease = renewed();
        lease.give_up();
        assert_eq!(lease.generation_if_valid(NOW), None);
        assert!(lease.is_given_up() && lease.generation() == 0);
    }

    #[test]
    fn a_doubt_stays_until_a_renewal_that_was_sent_after_it() {
        let lease = renewed();
        let before = lease.begin_renewal(NOW + 10);
        lease.doubt();
        assert_eq!(lease.generation_if_valid(NOW + 10), None);
        assert!(!lease.renewed(NOW + 20, before, true).is_news);
        assert!(lease.is_doubted());
        let after = lease.begin_renewal(NOW + 30);
        assert!(lease.renewed(NOW + 40, after, true).is_news);
        assert_eq!(lease.generation_if_valid(NOW + 40), Some(0));
    }

    #[test]
    fn renewals_are_numbered() {
        let lease = renewed();
        assert_eq!([lease.begin_renewal(0).number, lease.begin_renewal(0).number], [2, 3]);
    }
}
