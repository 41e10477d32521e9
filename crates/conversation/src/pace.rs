//! Limits the rate of progress notifications to the client, for one request (PRG-05).

use bytes::Bytes;
use protocol::ProgressToken;

use crate::{Limits, Millis};

/// The rate limit of one request's progress (PRG-05): `burst` at once, then a steady rate, always
/// with the latest notification.
pub(crate) struct Pace {
    pub(crate) token: ProgressToken,
    /// The last progress that was forwarded or waits; it must rise (PRG-02).
    last: f64,
    /// Thousandths of a notification that may be forwarded now.
    allowance: u64,
    counted_at: Millis,
    /// The latest notification that had to wait.
    held: Option<Bytes>,
}

impl Pace {
    pub(crate) fn new(token: ProgressToken, limits: &Limits, now: Millis) -> Self {
        let allowance = u64::from(limits.progress_burst) * 1_000;
        Self { token, last: f64::NEG_INFINITY, allowance, counted_at: now, held: None }
    }

    /// The value that must rise.
    pub(crate) fn last(&self) -> f64 {
        self.last
    }

    /// Later progress must exceed what a former owner sent.
    pub(crate) fn raise_to(&mut self, progress: f64) {
        self.last = self.last.max(progress);
    }

    /// Takes one notification; returns it if it may be forwarded now. One that does not rise is
    /// dropped.
    pub(crate) fn admit(
        &mut self,
        progress: f64,
        data: Bytes,
        limits: &Limits,
        now: Millis,
    ) -> Option<Bytes> {
        if progress <= self.last || progress.is_nan() {
            return None;
        }
        self.last = progress;
        self.refill(limits, now);
        if self.allowance < 1_000 {
            self.held = Some(data);
            return None;
        }
        self.allowance -= 1_000;
        self.held = None;
        Some(data)
    }

    /// The waiting notification, if it may be forwarded now.
    pub(crate) fn take_due(&mut self, limits: &Limits, now: Millis) -> Option<Bytes> {
        self.refill(limits, now);
        if self.allowance < 1_000 {
            return None;
        }
        let held = self.held.take()?;
        self.allowance -= 1_000;
        Some(held)
    }

    /// The waiting notification at any time: its request ends.
    pub(crate) fn last_held(&mut self) -> Option<Bytes> {
        self.held.take()
    }

    /// When the waiting notification may be forwarded.
    pub(crate) fn deadline(&self, limits: &Limits) -> Option<Millis> {
        self.held.as_ref()?;
        let missing = 1_000_u64.saturating_sub(self.allowance);
        Some(self.counted_at.plus(missing.div_ceil(u64::from(limits.progress_per_sec.max(1)))))
    }

    fn refill(&mut self, limits: &Limits, now: Millis) {
        let elapsed = now.0.saturating_sub(self.counted_at.0);
        let earned = elapsed.saturating_mul(u64::from(limits.progress_per_sec.max(1)));
        let full = u64::from(limits.progress_burst.max(1)) * 1_000;
        self.allowance = self.allowance.saturating_add(earned).min(full);
        self.counted_at = self.counted_at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_progress_is_thinned_and_its_final_response_kept() {
        let limits = Limits { progress_burst: 2, progress_per_sec: 10, ..Limits::default() };
        let mut pace = Pace::new(1.into(), &limits, Millis(0));
        let mut passed = Vec::new();
        for progress in 0..1_000 {
            let now = Millis(progress / 10);
            let data = Bytes::from(progress.to_string());
            passed.extend(pace.take_due(&limits, now));
            passed.extend(pace.admit(progress as f64, data, &limits, now));
        }
        assert_eq!(passed.len(), 2);
        assert_eq!(pace.deadline(&limits), Some(Millis(100)));
        assert_eq!(pace.take_due(&limits, Millis(100)).unwrap(), "999");
        assert_eq!(pace.deadline(&limits), None);
    }

    #[test]
    fn progress_that_does_not_rise_is_dropped() {
        let limits = Limits::default();
        let mut pace = Pace::new(1.into(), &limits, Millis(0));
        assert!(pace.admit(1.0, Bytes::new(), &limits, Millis(0)).is_some());
        assert!(pace.admit(1.0, Bytes::new(), &limits, Millis(0)).is_none());
        assert!(pace.admit(0.5, Bytes::new(), &limits, Millis(0)).is_none());
        assert!(pace.admit(1.5, Bytes::new(), &limits, Millis(0)).is_some());
    }
}
