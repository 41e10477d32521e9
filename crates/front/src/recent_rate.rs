//! The rate at which bytes have arrived recently: in this second and the one before.

use std::time::Duration;

use tokio::time::Instant;

const WINDOW: Duration = Duration::from_secs(1);

/// Counts bytes in windows of a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecentRate {
    began: Instant,
    /// The begin of the current window.
    since: Instant,
    current: u64,
    previous: u64,
}

impl RecentRate {
    /// No bytes yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self { began: now, since: now, current: 0, previous: 0 }
    }

    /// Counts bytes.
    pub(crate) fn add(&mut self, now: Instant, bytes: u64) {
        self.roll(now);
        self.current += bytes;
    }

    /// The time since the begin, and the recent rate in bytes per second.
    pub(crate) fn measure(&mut self, now: Instant) -> (Duration, u64) {
        self.roll(now);
        let age = now.saturating_duration_since(self.began);
        let span = age.min(WINDOW + now.saturating_duration_since(self.since));
        let bytes = self.current + self.previous;
        (age, bytes.saturating_mul(1_000) / (span.as_millis() as u64).max(1))
    }

    fn roll(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed >= 2 * WINDOW {
            (self.since, self.current, self.previous) = (now, 0, 0);
        } else if passed >= WINDOW {
            (self.since, self.previous) = (self.since + WINDOW, self.current);
            self.current = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_two_seconds_count() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut rate = RecentRate::new(began);
        rate.add(began, 4_000_000);
        assert_eq!(rate.measure(at(500)), (Duration::from_millis(500), 8_000_000));
        assert_eq!(rate.measure(at(1_000)).1, 4_000_000);
        assert_eq!(rate.measure(at(1_500)).1, 2_666_666);
        assert_eq!(rate.measure(at(3_000)), (Duration::from_secs(3), 0));
        rate.add(at(3_100), 10_000);
        assert_eq!(rate.measure(at(3_500)).1, 10_000_000 / 1_500);
    }
}
