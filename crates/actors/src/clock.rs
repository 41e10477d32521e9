//! The one clock of sessions. It never goes back.

use std::sync::LazyLock;
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
