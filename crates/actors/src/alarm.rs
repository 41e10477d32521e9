//! The one timer of a session.
//!
//! It rings at or before the session's deadline, and a ring means no more than "ask
//! again": a deadline that moves away leaves the timer as it is, so a call that is
//! answered at once costs no timer at all.

use std::pin::Pin;
use std::task::{Context, Poll};

use conversation::Millis;
use tokio::time::Sleep;

use crate::clock;

/// A session without a deadline is asked once a day.
const LONGEST_WAIT_MS: u64 = 24 * 60 * 60 * 1_000;

pub(crate) struct Alarm {
    sleep: Pin<Box<Sleep>>,
    at: Millis,
}

impl Alarm {
    pub(crate) fn new(now: Millis) -> Self {
        let at = now.plus(LONGEST_WAIT_MS);
        Self { sleep: Box::pin(tokio::time::sleep_until(clock::instant(at))), at }
    }

    /// Sees to it that it rings no later than at the deadline.
    pub(crate) fn ring_by(&mut self, deadline: Option<Millis>, now: Millis) {
        let deadline = deadline.unwrap_or(now.plus(LONGEST_WAIT_MS));
        if deadline < self.at {
            self.at = deadline;
            // Whoever waits for the old time is woken at the new one.
            self.sleep.as_mut().reset(clock::instant(deadline));
        }
    }

    /// Ready when it rings. To be set again with `ring_by`, and then polled again.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.at == Millis(u64::MAX) {
            return Poll::Pending;
        }
        self.sleep.as_mut().poll(context).map(|()| self.at = Millis(u64::MAX))
    }
}
