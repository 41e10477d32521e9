//! The clock by which the node measures its lease.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since a fixed moment. It never goes back, and it advances while the machine is
/// suspended: a node that resumes must find its lease lapsed.
pub(crate) type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The boot-time clock of this machine.
pub(crate) fn boottime() -> Clock {
    Arc::new(|| {
        let now = clock_gettime(ClockId::Boottime);
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(secs, u32::try_from(now.tv_nsec).unwrap_or(0))
    })
}

/// Whole milliseconds; `u64::MAX` where there are more.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
