//! What this node knows of failovers of the store, for all its threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use ownership::failover::{FailoverTracker, Generation};
use protocol::SessionId;
use store::redis::{slot_of, slot_of_leases};
use store::{Primary, PrimaryId};

use crate::metrics;

/// The primaries as this node knows them. Asked before each turn of each session, written after
/// failovers.
pub(crate) struct Failovers {
    tracker: RwLock<FailoverTracker>,
    /// [`FailoverTracker::newest`].
    newest: AtomicU64,
}

impl Failovers {
    /// Stabilisation takes so much time.
    pub(crate) fn new(stabilisation: Duration) -> Self {
        let tracker = FailoverTracker::new(millis(stabilisation));
        Self { tracker: RwLock::new(tracker), newest: AtomicU64::new(0) }
    }

    /// Of a node on its own, which does not look at the primaries.
    pub(crate) fn never() -> Self {
        let tracker = FailoverTracker::never();
        let newest = AtomicU64::new(tracker.newest());
        Self { tracker: RwLock::new(tracker), newest }
    }

    /// Takes the primaries that answered. Returns whether any is new.
    pub(crate) fn observe(&self, primaries: Vec<Primary>, now: u64) -> bool {
        let mut tracker = self.tracker.write().unwrap_or_else(PoisonError::into_inner);
        let observed = tracker.observe(primaries, now);
        metrics::STABILISING.set((!tracker.is_stable(now)).into());
        self.newest.store(tracker.newest(), Ordering::Release);
        drop(tracker);
        if observed.failed_over {
            metrics::FAILOVERS.inc();
            tracing::warn!("the store has another primary; sessions are written anew");
        }
        observed.any_new
    }

    /// The generation of the primary that keeps this session.
    pub(crate) fn generation(&self, session: &SessionId, now: u64) -> Generation {
        self.tracker().generation(|| slot_of(session), slot_of_leases, now)
    }

    /// The number of the newest generation of any primary.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// The primaries that this node takes into account.
    pub(crate) fn primaries(&self) -> Vec<PrimaryId> {
        self.tracker().primaries()
    }

    /// Is the stabilisation of all primaries done?
    pub(crate) fn is_stable(&self, now: u64) -> bool {
        self.tracker().is_stable(now)
    }

    /// Does a lease that is not there prove that its node may not act?
    pub(crate) fn lapse_proves(&self, now: u64, lease: Duration) -> bool {
        self.tracker().lapse_proves(slot_of_leases, now, millis(lease))
    }

    fn tracker(&self) -> RwLockReadGuard<'_, FailoverTracker> {
        self.tracker.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
