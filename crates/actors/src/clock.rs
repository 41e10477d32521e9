//! The one clock of sessions. It never goes back.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as StdInstant};

use conversation::Millis;
use tokio::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(|| Instant::from_std(StdInstant::now()));

/// How long the process has been running, as far as sessions are concerned.
pub(crate) fn now() -> Millis {
    let running = Instant::now().saturating_duration_since(*START);
    Millis(u64::try_from(running.as_millis()).unwrap_or(u64::MAX))
}

/// That moment, for timers.
pub(crate) fn instant(at: Millis) -> Instant {
    *START + Duration::from_millis(at.0)
}

/// The shortest time between two log lines about the same thing, in milliseconds.
const SELDOM: u64 = 10_000;

/// Limits how often something is logged that a client can provoke with each request.
pub(crate) struct Seldom {
    /// When it may be logged again.
    next: AtomicU64,
}

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self { next: AtomicU64::new(0) }
    }

    /// May it be logged now? Then not again for 10 s.
    pub(crate) fn may_log(&self, now: Millis) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let later = now.0.saturating_add(SELDOM);
        now.0 >= next
            && self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
