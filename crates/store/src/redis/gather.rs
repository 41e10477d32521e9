//! Lets appends that come at about the same time go out at the same time.
//!
//! An append that travels alone costs Redis a wake-up, a read and a write, several times
//! what it costs to perform. Where a few come every millisecond, each from another session,
//! they wait for the end of a common window and are written, read and answered together.
//! Where fewer come nothing would be gained, and where more come they meet by themselves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The longest time that an append waits, in milliseconds. A client that receives a few events a
/// second does not notice it; a node that sends thousands of appends a second never waits.
const WINDOW_MS: u64 = 5;

/// So many windows are looked back on.
const WINDOWS: u64 = 16;

/// Appends in that time from which on they wait, and up to which: 500 and 3,000 a second.
const FEW: u64 = 40;
const MANY: u64 = 240;

/// What has come lately. Approximate where threads meet, which costs a wait or saves one.
pub(super) struct Gather {
    start: Instant,
    /// Which sixteen windows are being counted, and how many came in them.
    period: AtomicU64,
    count: AtomicU64,
    /// How many came in the sixteen before.
    before: AtomicU64,
}

impl Gather {
    pub(super) fn new() -> Self {
        let zero = AtomicU64::default;
        Self { start: Instant::now(), period: zero(), count: zero(), before: zero() }
    }

    /// Waits for the others, where there are some.
    pub(super) async fn wait(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        if self.is_worth_it(now / (WINDOW_MS * WINDOWS)) {
            let end = (now / WINDOW_MS + 1) * WINDOW_MS;
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

    /// So many come in each of some periods; do those of the next one wait?
    #[track_caller]
    fn check(counts: &[u64], waits: bool) {
        let gather = Gather::new();
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
        let gather = Gather::new();
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
}
