//! Batches appends of different sessions within a short window.
//!
//! An append that is sent alone costs Redis a wake-up, a read and a write, several times the
//! cost of its execution. At a medium rate, appends wait for the end of a common window and are
//! written, read and answered together. At a low rate a wait gains nothing. At a high rate
//! appends share writes without a wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Number of windows in a period, over which appends are counted.
const WINDOWS: u64 = 16;

/// Appends in a period from which on they wait. With fewer than 2.5 in a window, an append is
/// mostly sent alone whether or not it waits.
const FEW: u64 = 40;

/// Appends in a period up to which they wait. With more than 15 in a window, several are in
/// flight at any time and share a write without waiting.
const MANY: u64 = 240;

/// Delays appends to the end of a window, if the last period had a medium number of them. The
/// counts are approximate under concurrency: an error adds or saves one wait.
pub(super) struct AppendWindow {
    start: Instant,
    /// The length of a window; zero disables the delay.
    window_ms: u64,
    /// The number of the current period.
    period: AtomicU64,
    /// Appends in the current period.
    count: AtomicU64,
    /// Appends in the period before.
    before: AtomicU64,
}

impl AppendWindow {
    pub(super) fn new(window_ms: u64) -> Self {
        let zero = AtomicU64::default;
        Self { start: Instant::now(), window_ms, period: zero(), count: zero(), before: zero() }
    }

    /// Waits for the end of the window, if the last period had a medium number of appends.
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

    /// Counts an append, and returns whether it should wait.
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

    /// Counts these appends in successive periods, then checks whether the next append waits.
    #[track_caller]
    fn check(counts: &[u64], waits: bool) {
        let append_window = AppendWindow::new(WINDOW_MS);
        for (period, count) in counts.iter().enumerate() {
            for _ in 0..*count {
                append_window.is_worth_it(period as u64);
            }
        }
        assert_eq!(append_window.is_worth_it(counts.len() as u64), waits, "{counts:?}");
    }

    #[test]
    fn appends_wait_at_a_medium_rate_but_not_at_a_low_or_high_one() {
        check(&[FEW - 1], false);
        check(&[FEW], true);
        check(&[MANY], true);
        check(&[MANY + 1], false);
        check(&[40, 40, FEW - 1], false);
        check(&[40, 0], false);
    }

    #[tokio::test(start_paused = true)]
    async fn appends_wait_until_the_end_of_a_common_window() {
        let append_window = AppendWindow::new(WINDOW_MS);
        for _ in 0..FEW {
            append_window.wait().await;
        }
        assert_eq!(append_window.start.elapsed(), Duration::ZERO);
        tokio::time::advance(Duration::from_millis(WINDOW_MS * WINDOWS + 1)).await;
        let woken = async || {
            append_window.wait().await;
            append_window.start.elapsed()
        };
        let (one, other) = tokio::join!(woken(), async {
            tokio::time::advance(Duration::from_micros(500)).await;
            woken().await
        });
        assert_eq!(one, other);
        // Timers have a resolution of 1 ms.
        let end = Duration::from_millis(WINDOW_MS * (WINDOWS + 1));
        assert!((end..end + Duration::from_millis(1)).contains(&one), "{one:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_window_no_append_waits() {
        let append_window = AppendWindow::new(0);
        for _ in 0..20 {
            tokio::time::advance(Duration::from_millis(4)).await;
            for _ in 0..5 {
                append_window.wait().await;
            }
        }
        assert_eq!(append_window.start.elapsed(), Duration::from_millis(80));
    }
}
