//! Lets appends that come at about the same time go out at the same time.
//!
//! An append that travels alone costs Redis a wake-up, a read and a write, several times
//! what it costs to perform. Where a few come every millisecond, each from another session,
//! they wait for the end of a common window and are written, read and answered together.
//! Where fewer come nothing would be gained, and where more come they meet by themselves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// So many windows are looked back on.
const WINDOWS: u64 = 16;

/// Appends in that time from which on they wait. With fewer than 2.5 in a window, an append mostly
/// has the connection to itself whether or not it waits.
const FEW: u64 = 40;

/// Appends in that time up to which they wait. With more than 15 in a window, several are on
/// their way at any time and share a write without waiting.
const MANY: u64 = 240;

/// Has appends wait for the end of a window, where some came lately. Approximate where threads
/// meet, which costs a wait or saves one.
pub(super) struct Gather {
    start: Instant,
    /// How long a window is; zero for none.
    window_ms: u64,
    /// Which sixteen windows are being counted, and how many came in them.
    period: AtomicU64,
    count: AtomicU64,
    /// How many came in the sixteen before.
    before: AtomicU64,
}

impl Gather {
    pub(super) fn new(window_ms: u64) -> Self {
        let zero = AtomicU64::default;
        Self { start: Instant::now(), window_ms, period: zero(), count: zero(), before: zero() }
    }

    /// Waits for the end of the window, where other appends came lately.
    pub(super) async fn wait(&self) {
        if self.window_ms == 0 {
            return;
        }
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        if self.is_worth_it(now / (self.window_ms * WINDOWS)) {
            let end = (now / self.window_ms + 1) * self.window_ms;
            sleep_until(self.start + Duration::from_millis(end)).await;
        }
    }

    /// Counts one more, and says whether so many came lately that waiting helps.
    fn is_worth_it(&self, period: u64) -> bool {
        let last = self.period.swap(period, Ordering::Relaxed);
        if last != period {
            let count = self.count.swap(0, Ordering::Relaxed);
            self.before.store(if last + 1 == period { count } else { 0 }, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        (FEW..=MANY).contains(&self.before.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_MS: u64 = 5;

    /// So many come in each of some periods; do those of the next one wait?
    #[track_caller]
    fn check(counts: &[u64], waits: bool) {
        let gather = Gather::new(WINDOW_MS);
        for (period, count) in counts.iter().enumerate() {
            for _ in 0..*count {
                gather.is_worth_it(period as u64);
            }
        }
        assert_eq!(gather.is_worth_it(counts.len() as u64), waits, "{counts:?}");
    }

    #[test]
    fn some_wait_for_each_other_but_neither_few_nor_many() {
        check(&[FEW - 1], false);
        check(&[FEW], true);
        check(&[MANY], true);
        check(&[MANY + 1], false);
        check(&[40, 40, FEW - 1], false);
        check(&[40, 0], false);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_does_so_until_the_end_of_a_common_window() {
        let gather = Gather::new(WINDOW_MS);
        for _ in 0..FEW {
            gather.wait().await;
        }
        assert_eq!(gather.start.elapsed(), Duration::ZERO);
        tokio::time::advance(Duration::from_millis(WINDOW_MS * WINDOWS + 1)).await;
        let woken = async || {
            gather.wait().await;
            gather.start.elapsed()
        };
        let (one, other) = tokio::join!(woken(), async {
            tokio::time::advance(Duration::from_micros(500)).await;
            woken().await
        });
        assert_eq!(one, other);
        // Timers go by whole milliseconds.
        let end = Duration::from_millis(WINDOW_MS * (WINDOWS + 1));
        assert!((end..end + Duration::from_millis(1)).contains(&one), "{one:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_window_no_append_waits() {
        let gather = Gather::new(0);
        for _ in 0..20 {
            tokio::time::advance(Duration::from_millis(4)).await;
            for _ in 0..5 {
                gather.wait().await;
            }
        }
        assert_eq!(gather.start.elapsed(), Duration::from_millis(80));
    }
}
