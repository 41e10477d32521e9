//! The clock that leases are held by.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Tells the time since some fixed moment. Never goes back, and goes on while the machine
/// sleeps: a node that wakes from a suspend must find its lease lapsed.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The clock of this machine.
pub(crate) fn boottime() -> Clock {
    Arc::new(|| {
        let now = clock_gettime(ClockId::Boottime);
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(secs, u32::try_from(now.tv_nsec).unwrap_or(0))
    })
}
