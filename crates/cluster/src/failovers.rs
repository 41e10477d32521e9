//! The failovers of the store that this node has observed, shared by all its threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use ownership::failover::{FailoverTracker, Generation};
use protocol::SessionId;
use store::redis::{slot_of, slot_of_leases};
use store::{Primary, PrimaryId};

use crate::clock::millis;
use crate::metrics;

/// The primaries of the store as this node knows them. Read before each step of each session,
/// written after failovers.
pub(crate) struct Failovers {
    tracker: RwLock<FailoverTracker>,
    /// [`FailoverTracker::newest`].
    newest: AtomicU64,
}

impl Failovers {
    /// `stabilisation` is the time that owners have to write their sessions again after a failover.
    pub(crate) fn new(stabilisation: Duration) -> Self {
        let tracker = FailoverTracker::new(millis(stabilisation));
        Self { tracker: RwLock::new(tracker), newest: AtomicU64::new(0) }
    }

    /// For a cluster of one, which does not read the primaries.
    pub(crate) fn never() -> Self {
        let tracker = FailoverTracker::never();
        let newest = AtomicU64::new(tracker.newest());
        Self { tracker: RwLock::new(tracker), newest }
    }

    /// Records the primaries that answered. Returns whether any of them is new.
    pub(crate) fn observe(&self, primaries: Vec<Primary>, now: u64) -> bool {
        let mut tracker = self.tracker.write().unwrap_or_else(PoisonError::into_inner);
        let observed = tracker.observe(primaries, now);
        metrics::STABILISING.set((!tracker.is_stable(now)).into());
        self.newest.store(tracker.newest(), Ordering::Release);
        drop(tracker);
        if observed.failed_over {
            metrics::FAILOVERS.inc();
            tracing::warn!(
                "store failover observed: sessions are written again to the new primary"
            );
        }
        observed.any_new
    }

    /// The failover generation of the primary that stores this session.
    pub(crate) fn generation(&self, session: &SessionId, now: u64) -> Generation {
        self.tracker().generation(|| slot_of(session), slot_of_leases, now)
    }

    /// The number of the newest generation of any primary.
    pub(crate) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// The ids of the primaries that this node knows.
    pub(crate) fn primaries(&self) -> Vec<PrimaryId> {
        self.tracker().primaries()
    }

    /// Whether the stabilisation of all primaries is done.
    pub(crate) fn is_stable(&self, now: u64) -> bool {
        self.tracker().is_stable(now)
    }

    /// Whether a missing lease proves that its node may not act.
    pub(crate) fn lapse_proves(&self, now: u64, lease: Duration) -> bool {
        self.tracker().lapse_proves(slot_of_leases, now, millis(lease))
    }

    fn tracker(&self) -> RwLockReadGuard<'_, FailoverTracker> {
        self.tracker.read().unwrap_or_else(PoisonError::into_inner)
    }
}
