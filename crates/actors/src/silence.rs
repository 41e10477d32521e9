//! Notices that a stream was told nothing for long.

use std::fmt;
use std::task::{Context, Poll, ready};

use conversation::Millis;

use crate::alarm::Alarm;
use crate::clock;

/// How long a stream has been silent. What is told costs no more than a note of it.
pub(crate) struct Silence {
    /// The longest that is let pass, in milliseconds.
    longest: u64,
    since: Millis,
    /// Something was told after that.
    is_broken: bool,
    alarm: Alarm,
}

impl Silence {
    pub(crate) fn new(secs: u64) -> Self {
        let now = clock::now();
        let longest = secs.saturating_mul(1_000);
        Self { longest, since: now, is_broken: false, alarm: Alarm::new(now) }
    }

    /// Something is told.
    pub(crate) fn broken(&mut self) {
        self.is_broken = true;
    }

    /// Ready when it has lasted for too long; then it begins anew. Late by less than a tick
    /// of the alarm.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.is_broken) {
            self.since = clock::now();
        }
        loop {
            let now = clock::now();
            let end = self.since.plus(self.longest);
            if end <= now {
                self.since = now;
                return Poll::Ready(());
            }
            self.alarm.ring_by(Some(end), now);
            // A ring may have been meant for an earlier end.
            ready!(self.alarm.poll(context));
        }
    }
}

impl fmt::Debug for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Silence").field("since", &self.since).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    /// How long it takes until it is ready, or `None` where it is not within a minute.
    async fn lasts(silence: &mut Silence) -> Option<u64> {
        let start = clock::now();
        let end = poll_fn(|context| silence.poll(context));
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
    async fn it_ends_again_and_again() {
        let mut silence = Silence::new(15);
        is_about(lasts(&mut silence).await, 15_000);
        is_about(lasts(&mut silence).await, 15_000);
        assert_eq!(lasts(&mut Silence::new(u64::MAX)).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_is_told_begins_it_anew() {
        let mut silence = Silence::new(15);
        for _ in 0..3 {
            let told = tokio::time::sleep(Duration::from_secs(10));
            tokio::select! {
                _ = lasts(&mut silence) => panic!("something was told"),
                () = told => silence.broken(),
            }
        }
        is_about(lasts(&mut silence).await, 15_000);
    }
}
