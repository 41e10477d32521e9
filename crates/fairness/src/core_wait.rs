//! Whether a thread waits for its core for most of the time. It reads no clock.

use std::time::{Duration, Instant};

/// The kernel is asked at most once in this time. A thread that has slept gets the core at once, and may then wait for
/// several milliseconds, so a shorter time would not tell.
const ASK_EVERY: Duration = Duration::from_millis(8);

/// The kernel is asked only after so many requests: asking takes about a microsecond, and a thread with fewer has no
/// flood.
const ASK_AFTER: u32 = 4;

/// Judges whether a thread waits for its core for more than half of the time.
#[derive(Debug, Default)]
pub(crate) struct CoreWait {
    /// When the kernel was asked last, and its answer.
    asked: Option<(Instant, Duration)>,
    requests: u32,
    is_long: bool,
}

impl CoreWait {
    /// Notes a request that began at this time. `ask` is called seldom: it tells how long the thread has been ready to
    /// run without running, and when that was so.
    pub(crate) fn note(&mut self, at: Instant, ask: impl FnOnce() -> Option<(Instant, Duration)>) {
        self.requests = self.requests.saturating_add(1);
        let wall = match self.asked {
            Some((before, _)) => at.saturating_duration_since(before),
            None => Duration::MAX,
        };
        if wall < ASK_EVERY || self.requests < ASK_AFTER {
            return;
        }
        self.requests = 0;
        let (now, ready) = ask().unwrap_or((at, Duration::ZERO));
        if let Some((before, ready_before)) = self.asked.replace((now, ready)) {
            let wall = now.saturating_duration_since(before);
            self.is_long = ready.saturating_sub(ready_before) > wall / 2;
        }
    }

    /// Whether the thread waited for more than half of the time between the last two answers.
    pub(crate) fn is_long(&self) -> bool {
        self.is_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Notes this number of requests at this time, and returns how often the kernel was asked.
    fn note(wait: &mut CoreWait, requests: u32, at: Instant, ready: Duration) -> u32 {
        let mut asked = 0;
        for _ in 0..requests {
            wait.note(at, || {
                asked += 1;
                Some((at, ready))
            });
        }
        asked
    }

    #[test]
    fn a_thread_that_is_ready_for_more_than_half_of_the_time_waits_long() {
        let begin = Instant::now();
        for (ready, is_long) in [(MS(4), false), (MS(5), true), (MS(8), true)] {
            let mut wait = CoreWait::default();
            note(&mut wait, ASK_AFTER, begin, MS(100));
            assert!(!wait.is_long(), "nothing is known yet");
            note(&mut wait, ASK_AFTER, begin + MS(8), MS(100) + ready);
            assert_eq!(wait.is_long(), is_long, "{ready:?}");
            // It runs again.
            note(&mut wait, ASK_AFTER, begin + MS(16), MS(100) + ready);
            assert!(!wait.is_long());
        }
    }

    #[test]
    fn the_kernel_is_asked_seldom() {
        let (mut wait, begin) = (CoreWait::default(), Instant::now());
        assert_eq!(note(&mut wait, ASK_AFTER - 1, begin, MS(0)), 0);
        assert_eq!(note(&mut wait, 1, begin, MS(0)), 1);
        assert_eq!(note(&mut wait, 1_000, begin + MS(7), MS(0)), 0);
        assert_eq!(note(&mut wait, 1, begin + MS(8), MS(0)), 1);
        assert_eq!(note(&mut wait, ASK_AFTER - 1, begin + MS(100), MS(0)), 0, "few requests");
        assert_eq!(note(&mut wait, 1, begin + MS(101), MS(0)), 1);
    }

    #[test]
    fn a_thread_whose_wait_is_not_known_does_not_wait() {
        let (mut wait, begin) = (CoreWait::default(), Instant::now());
        for millis in 0..100 {
            wait.note(begin + MS(millis), || None);
        }
        assert!(!wait.is_long());
    }
}
