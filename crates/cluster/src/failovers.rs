//! What this node knows of failovers of the store, for all its threads.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use ownership::failover::{FailoverTracker, Generation, Rules};
use protocol::SessionId;
use store::redis::{slot_of, slot_of_leases};
use store::{Primary, PrimaryId};

use crate::metrics;

/// The primaries as this node knows them. Asked before each turn of each session, written after
/// failovers.
pub(crate) struct Failovers(RwLock<FailoverTracker>);

impl Failovers {
    /// Failovers settle in so much time.
    pub(crate) fn new(settle: Duration) -> Self {
        Self(RwLock::new(FailoverTracker::new(millis(settle), Rules::default())))
    }

    /// Takes the primaries that answered. Returns whether any is new.
    pub(crate) fn observe(&self, primaries: Vec<Primary>, now: u64) -> bool {
        let mut tracker = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let observed = tracker.observe(primaries, now);
        metrics::SETTLING.set((!tracker.is_settled(now)).into());
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

    /// The primaries that this node takes into account.
    pub(crate) fn primaries(&self) -> Vec<PrimaryId> {
        self.tracker().primaries()
    }

    /// Has everything settled?
    pub(crate) fn is_settled(&self, now: u64) -> bool {
        self.tracker().is_settled(now)
    }

    /// Does a lease that is not there prove that its node may not act?
    pub(crate) fn lapse_proves(&self, now: u64, lease: Duration) -> bool {
        self.tracker().lapse_proves(slot_of_leases, now, millis(lease))
    }

    fn tracker(&self) -> RwLockReadGuard<'_, FailoverTracker> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
