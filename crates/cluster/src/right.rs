//! May this node act as an owner now?

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::metrics;

/// The right to act that comes with a lease. Told without asking anyone.
pub(crate) struct Right {
    clock: Clock,
    /// How long a renewal is good for, from when it was sent.
    span: Duration,
    /// When it ends, in milliseconds of the clock; 0 while there never was one.
    until: AtomicU64,
    /// How often the right was lost.
    epoch: AtomicU64,
    /// How often there was reason to fear that others take this node for dead, and up to
    /// which of those a renewal has answered.
    feared: AtomicU64,
    dispelled: AtomicU64,
    /// The lease is being given up.
    over: AtomicBool,
    /// The incarnation was marked dead.
    dead: CancellationToken,
}

impl Right {
    pub(crate) fn new(clock: Clock, span: Duration) -> Self {
        metrics::show(span);
        Self {
            clock,
            span,
            until: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            feared: AtomicU64::new(0),
            dispelled: AtomicU64::new(0),
            over: AtomicBool::new(false),
            dead: CancellationToken::new(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        millis((self.clock)())
    }

    /// The epoch, where the node may act. Whoever acts for a session compares it with the
    /// epoch that the session was claimed in.
    pub(crate) fn epoch_if_valid(&self) -> Option<u64> {
        // In this order: a new end is told only after the new epoch is.
        let valid = self.now() < self.until.load(Ordering::Acquire);
        let ended = self.over.load(Ordering::Acquire) || self.dead.is_cancelled();
        let doubted = self.dispelled.load(Ordering::Acquire) < self.feared.load(Ordering::Acquire);
        (valid && !ended && !doubted).then(|| self.epoch())
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// A renewal that was sent at `sent` succeeded. One task calls this.
    pub(crate) fn renewed(&self, sent: u64, was_there: bool) {
        let until = self.until.load(Ordering::Acquire);
        let lapsed = self.now() >= until;
        if until != 0 && (lapsed || !was_there) {
            metrics::LEASES_LOST.inc();
            tracing::warn!(lapsed, was_there, "the lease was lost and is renewed");
            // Somebody may have seen this node gone.
            self.epoch.fetch_add(1, Ordering::AcqRel);
        }
        self.until.store(sent.saturating_add(millis(self.span)), Ordering::Release);
        self.tell_age(sent);
    }

    /// A link to a peer was lost: the peer may be about to have this node marked dead. Until
    /// the store was asked, nothing is done.
    pub(crate) fn doubt(&self) {
        self.feared.fetch_add(1, Ordering::AcqRel);
    }

    /// The doubts that a renewal sent now answers, for [`Right::dispel`].
    pub(crate) fn doubts(&self) -> u64 {
        self.feared.load(Ordering::Acquire)
    }

    /// The store was asked, and had no mark of this node's death, or nobody can ask it.
    /// Answers whether anything that was not to be done meanwhile may be done again.
    pub(crate) fn dispel(&self, doubts: u64) -> bool {
        self.dispelled.fetch_max(doubts, Ordering::AcqRel) < doubts
    }

    /// The node gives its lease up.
    pub(crate) fn give_up(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// The node was marked dead and will never act again.
    pub(crate) fn end(&self) {
        self.dead.cancel();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.dead.is_cancelled()
    }

    pub(crate) async fn ended(&self) {
        self.dead.cancelled().await;
    }

    /// Shows how long ago the lease was renewed.
    pub(crate) fn show_age(&self) {
        let until = self.until.load(Ordering::Acquire);
        if until != 0 {
            self.tell_age(until.saturating_sub(millis(self.span)));
        }
    }

    fn tell_age(&self, sent: u64) {
        metrics::lease_age(Duration::from_millis(self.now().saturating_sub(sent)));
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A right that lasts 5 s, and its clock in milliseconds.
    fn right() -> (Right, Arc<AtomicU64>) {
        let millis = Arc::new(AtomicU64::new(100_000));
        let clock = millis.clone();
        let clock = Arc::new(move || Duration::from_millis(clock.load(Ordering::SeqCst)));
        (Right::new(clock, Duration::from_secs(5)), millis)
    }

    #[test]
    fn nobody_acts_before_the_first_renewal() {
        let (right, _) = right();
        assert_eq!(right.epoch_if_valid(), None);
    }

    #[test]
    fn the_right_counts_from_when_the_renewal_was_sent() {
        let (right, clock) = right();
        let sent = right.now();
        clock.fetch_add(2_000, Ordering::SeqCst);
        right.renewed(sent, false);
        assert_eq!(right.epoch_if_valid(), Some(0));
        clock.fetch_add(2_999, Ordering::SeqCst);
        assert_eq!(right.epoch_if_valid(), Some(0));
        clock.fetch_add(1, Ordering::SeqCst);
        assert_eq!(right.epoch_if_valid(), None);
    }

    #[test]
    fn a_lapse_begins_an_epoch_and_a_renewal_in_time_does_not() {
        let (right, clock) = right();
        right.renewed(right.now(), false);
        clock.fetch_add(4_999, Ordering::SeqCst);
        right.renewed(right.now(), true);
        assert_eq!(right.epoch_if_valid(), Some(0));
        clock.fetch_add(5_000, Ordering::SeqCst);
        right.renewed(right.now(), true);
        assert_eq!(right.epoch_if_valid(), Some(1));
    }

    #[test]
    fn a_lease_that_the_store_forgot_begins_an_epoch() {
        let (right, _) = right();
        right.renewed(right.now(), false);
        right.renewed(right.now(), false);
        assert_eq!(right.epoch_if_valid(), Some(1));
    }

    #[test]
    fn a_node_marked_dead_never_acts_again() {
        let (right, _) = right();
        right.renewed(right.now(), false);
        right.end();
        right.renewed(right.now(), true);
        assert_eq!(right.epoch_if_valid(), None);
        assert!(right.has_ended());
    }
}
