//! The clock of sessions. It never goes back.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as StdInstant};

use conversation::Millis;
use tokio::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(|| Instant::from_std(StdInstant::now()));

/// The time since the start of this clock.
pub(crate) fn now() -> Millis {
    let running = Instant::now().saturating_duration_since(*START);
    Millis(u64::try_from(running.as_millis()).unwrap_or(u64::MAX))
}

/// The instant of a time, for timers.
pub(crate) fn instant(at: Millis) -> Instant {
    *START + Duration::from_millis(at.0)
}

/// The shortest time between two log lines of one kind, in milliseconds.
const SELDOM: u64 = 10_000;

/// Limits the rate of a log line that a client can cause with each request.
pub(crate) struct Seldom {
    /// The earliest time of the next log line.
    next: AtomicU64,
}

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self { next: AtomicU64::new(0) }
    }

    /// Whether the line may be logged now. If so, the next one may follow after 10 s.
    pub(crate) fn may_log(&self, now: Millis) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let later = now.0.saturating_add(SELDOM);
        now.0 >= next
            && self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
