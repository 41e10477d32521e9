//! Keeps exchanges from a server that cannot be reached: after some faults of the transport in a row they
//! fail at once, and after a wait a single one tries again.
//!
//! A status or a slow answer is no fault of the transport, so it never counts. [`State`] has no clock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many faults in a row open the breaker.
const FAULTS_MAX: u32 = 5;
/// The first wait; it doubles with each try that fails.
const WAIT_MIN: Duration = Duration::from_secs(1);
/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What is known of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Exchanges are sent. So many faults came in a row.
    Closed { faults: u32 },
    /// None is sent until then.
    Open { until: Instant, wait: Duration },
    /// One is sent, and decides.
    Trying { wait: Duration },
}

impl State {
    /// May an exchange be sent? `Some(true)`: it is the one that decides.
    fn admit(&mut self, now: Instant) -> Option<bool> {
        match *self {
            Self::Closed { .. } => Some(false),
            Self::Open { until, wait } if until <= now => {
                *self = Self::Trying { wait };
                Some(true)
            }
            Self::Open { .. } | Self::Trying { .. } => None,
        }
    }

    /// The server was reached.
    fn note_reached(&mut self) {
        *self = Self::Closed { faults: 0 };
    }

    /// An exchange had a fault. Returns whether the breaker opened.
    fn note_fault(&mut self, is_try: bool, now: Instant) -> bool {
        match *self {
            Self::Closed { faults } if faults + 1 < FAULTS_MAX => {
                *self = Self::Closed { faults: faults + 1 };
                false
            }
            Self::Closed { .. } => {
                *self = Self::Open { until: now + WAIT_MIN, wait: WAIT_MIN };
                true
            }
            Self::Trying { wait } if is_try => {
                let wait = wait.saturating_mul(2).min(WAIT_MAX);
                *self = Self::Open { until: now + wait, wait };
                false
            }
            // An exchange that began before.
            Self::Trying { .. } | Self::Open { .. } => false,
        }
    }

    /// The exchange that was to decide ended without an outcome: the next one decides.
    fn note_abandoned(&mut self, now: Instant) {
        if let Self::Trying { wait } = *self {
            *self = Self::Open { until: now, wait };
        }
    }
}

/// The breaker of a backend at this node.
#[derive(Debug)]
pub(crate) struct Breaker(Mutex<State>);

impl Breaker {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State::Closed { faults: 0 }))
    }

    /// May an exchange be sent? `None`: the server is not reachable at present.
    pub(crate) fn admit(&self) -> Option<Admitted<'_>> {
        let is_try = self.lock().admit(Instant::now())?;
        Some(Admitted { breaker: self, is_try, is_settled: false })
    }

    /// No code panics while it holds the lock, and none waits.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An exchange that is sent.
#[derive(Debug)]
pub(crate) struct Admitted<'a> {
    breaker: &'a Breaker,
    is_try: bool,
    is_settled: bool,
}

impl Admitted<'_> {
    /// The server was reached.
    pub(crate) fn reached(mut self) {
        self.is_settled = true;
        self.breaker.lock().note_reached();
    }

    /// The transport failed. Returns whether exchanges are held back from now on.
    pub(crate) fn fault(mut self) -> bool {
        self.is_settled = true;
        self.breaker.lock().note_fault(self.is_try, Instant::now())
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if self.is_try && !self.is_settled {
            self.breaker.lock().note_abandoned(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A state with so many faults in a row.
    fn after_faults(count: u32, now: Instant) -> State {
        let mut state = State::Closed { faults: 0 };
        for _ in 0..count {
            state.note_fault(false, now);
        }
        state
    }

    #[test]
    fn faults_in_a_row_open_it_and_others_do_not() {
        let now = Instant::now();
        let mut state = after_faults(4, now);
        assert_eq!(state.admit(now), Some(false));
        state.note_reached();
        assert!((0..4).all(|_| !state.note_fault(false, now)));
        assert!(state.note_fault(false, now), "it opens");
        assert_eq!(state.admit(now), None);
    }

    #[test]
    fn one_exchange_tries_after_a_wait_that_doubles() {
        let begin = Instant::now();
        let (mut state, mut now, mut waits) = (after_faults(5, begin), begin, Vec::new());
        for _ in 0..7 {
            let State::Open { until, .. } = state else { panic!("{state:?}") };
            waits.push((until - now).as_secs());
            now = until;
            assert_eq!(state.admit(now - Duration::from_millis(1)), None);
            assert_eq!(state.admit(now), Some(true));
            assert_eq!(state.admit(now), None, "one at a time");
            assert!(!state.note_fault(false, now), "one that began before decides nothing");
            assert!(matches!(state, State::Trying { .. }), "{state:?}");
            state.note_fault(true, now);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        let State::Open { until, .. } = state else { panic!("{state:?}") };
        assert_eq!(state.admit(until), Some(true));
        state.note_reached();
        assert_eq!(state, State::Closed { faults: 0 });
    }

    #[test]
    fn a_try_that_is_dropped_leaves_the_decision_to_the_next() {
        let breaker = Breaker(Mutex::new(State::Open { until: Instant::now(), wait: WAIT_MIN }));
        let first = breaker.admit().unwrap();
        assert!(breaker.admit().is_none());
        drop(first);
        breaker.admit().unwrap().reached();
        assert!(breaker.admit().is_some_and(|admitted| !admitted.is_try));
    }
}
