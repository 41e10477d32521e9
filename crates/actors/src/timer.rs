//! The one timer of a session, or of an idle stream.
//!
//! The timer fires at or before the deadline, and its owner then checks which work is due. A
//! deadline that moves later does not reset the timer, so a call that is answered at once costs no
//! timer operation. A deadline more than a second away may fire late by less than a tick, so that a
//! thread wakes up once for many idle sessions.

use std::pin::Pin;
use std::task::{Context, Poll};

use conversation::Millis;
use tokio::time::Sleep;

use crate::clock;

/// A session without a deadline is woken once a day.
const LONGEST_WAIT_MS: u64 = 24 * 60 * 60 * 1_000;

/// A deadline at least this far away may fire late, by less than a tick.
const FAR_MS: u64 = 1_000;
const TICK_MS: u64 = 100;

pub(crate) struct Timer {
    sleep: Pin<Box<Sleep>>,
    at: Millis,
}

impl Timer {
    pub(crate) fn new(now: Millis) -> Self {
        let at = now.plus(LONGEST_WAIT_MS);
        Self { sleep: Box::pin(tokio::time::sleep_until(clock::instant(at))), at }
    }

    /// Makes the timer fire no later than at the deadline, or the tick after it.
    pub(crate) fn fire_by(&mut self, deadline: Option<Millis>, now: Millis) {
        let at = coarse(deadline.unwrap_or(now.plus(LONGEST_WAIT_MS)), now);
        if at < self.at {
            self.at = at;
            // A task that waits for the old time is woken at the new one.
            self.sleep.as_mut().reset(clock::instant(at));
        }
    }

    /// Ready when it fires. Set it again with `fire_by`, and then poll it again.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.at == Millis(u64::MAX) {
            return Poll::Pending;
        }
        self.sleep.as_mut().poll(context).map(|()| self.at = Millis(u64::MAX))
    }
}

/// A deadline, or the tick after it if it is far away.
fn coarse(deadline: Millis, now: Millis) -> Millis {
    if deadline.0.saturating_sub(now.0) < FAR_MS {
        return deadline;
    }
    Millis(deadline.0.checked_next_multiple_of(TICK_MS).unwrap_or(deadline.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_deadlines_fire_to_the_millisecond_and_far_ones_to_the_tick() {
        let now = Millis(10_007);
        for (deadline, at) in
            [(0, 0), (10_008, 10_008), (11_006, 11_006), (11_007, 11_100), (25_000, 25_000)]
        {
            assert_eq!(coarse(Millis(deadline), now), Millis(at), "{deadline}");
        }
        assert_eq!(coarse(Millis(u64::MAX), now), Millis(u64::MAX));
    }
}
