//! The keep-alive timer of a stream.

use std::fmt;
use std::task::{Context, Poll, ready};

use conversation::Millis;

use crate::clock;
use crate::timer::Timer;

/// Fires when a stream has been idle for an interval. An event only sets a flag.
pub(crate) struct KeepAliveTimer {
    /// In milliseconds.
    interval: u64,
    idle_since: Millis,
    /// Whether an event was sent after `idle_since`.
    has_sent: bool,
    timer: Timer,
}

impl KeepAliveTimer {
    pub(crate) fn new(interval_secs: u64) -> Self {
        let now = clock::now();
        let interval = interval_secs.saturating_mul(1_000);
        Self { interval, idle_since: now, has_sent: false, timer: Timer::new(now) }
    }

    /// Records that an event is sent.
    pub(crate) fn note_event(&mut self) {
        self.has_sent = true;
    }

    /// Ready when the stream has been idle for the interval; then the interval starts again. Late
    /// by less than a tick of the timer.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.has_sent) {
            self.idle_since = clock::now();
        }
        loop {
            let now = clock::now();
            let end = self.idle_since.plus(self.interval);
            if end <= now {
                self.idle_since = now;
                return Poll::Ready(());
            }
            self.timer.fire_by(Some(end), now);
            // The timer may have fired for an earlier end.
            ready!(self.timer.poll(context));
        }
    }
}

impl fmt::Debug for KeepAliveTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAliveTimer")
            .field("idle_since", &self.idle_since)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    /// The time until the timer is ready, or `None` if that takes more than a minute.
    async fn lasts(timer: &mut KeepAliveTimer) -> Option<u64> {
        let start = clock::now();
        let end = poll_fn(|context| timer.poll(context));
        let ended = tokio::time::timeout(Duration::from_secs(60), end).await;
        ended.is_ok().then(|| clock::now().0 - start.0)
    }

    #[track_caller]
    fn is_about(lasted: Option<u64>, millis: u64) {
        assert!(
            lasted.is_some_and(|lasted| (millis..=millis + 100).contains(&lasted)),
            "{lasted:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_timer_fires_after_each_interval() {
        let mut timer = KeepAliveTimer::new(15);
        is_about(lasts(&mut timer).await, 15_000);
        is_about(lasts(&mut timer).await, 15_000);
        assert_eq!(lasts(&mut KeepAliveTimer::new(u64::MAX)).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_restarts_the_interval() {
        let mut timer = KeepAliveTimer::new(15);
        for _ in 0..3 {
            let sent = tokio::time::sleep(Duration::from_secs(10));
            tokio::select! {
                _ = lasts(&mut timer) => panic!("an event was sent"),
                () = sent => timer.note_event(),
            }
        }
        is_about(lasts(&mut timer).await, 15_000);
    }
}
