//! Keeps exchanges from a server that cannot be reached: after some faults of the transport in a row they
//! fail at once, and after a wait a single one tries again.
//!
//! A status or a slow answer is no fault of the transport, so it never counts. [`State`] has no clock.
//!
//! An exchange that begins a session may wait for the one that tries: a link that fails is opened again after a
//! wait of its own, which would begin only when this one is over. [`Breaker::held_back_for`] is for those that
//! choose this wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout;

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

    /// How long it takes until an exchange may be sent; `None` if another one decides that.
    fn wait(&self, now: Instant) -> Option<Duration> {
        match self {
            Self::Closed { .. } => Some(Duration::ZERO),
            Self::Open { until, .. } => Some(until.saturating_duration_since(now)),
            Self::Trying { .. } => None,
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
pub(crate) struct Breaker {
    state: Mutex<State>,
    /// Wakes exchanges that wait for the one that tries.
    decided: Notify,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        Self::of(State::Closed { faults: 0 })
    }

    fn of(state: State) -> Self {
        Self { state: Mutex::new(state), decided: Notify::new() }
    }

    /// As [`Self::admit`], but waits for that, at most so long. `None` at once if it would take longer.
    pub(crate) async fn admit_within(&self, within: Duration) -> Option<Admitted<'_>> {
        let until = Instant::now() + within;
        loop {
            let mut decided = std::pin::pin!(self.decided.notified());
            // A decision from here on wakes it.
            decided.as_mut().enable();
            if let Some(admitted) = self.admit() {
                return Some(admitted);
            }
            let now = Instant::now();
            let left = until.saturating_duration_since(now);
            let wait = self.lock().wait(now).unwrap_or(left);
            if left.is_zero() || wait > left {
                return None;
            }
            // It is over when it is time, or when another exchange has decided.
            let _ = timeout(wait, decided).await;
        }
    }

    /// May an exchange be sent? `None`: the server is not reachable at present.
    pub(crate) fn admit(&self) -> Option<Admitted<'_>> {
        let is_try = self.lock().admit(Instant::now())?;
        Some(Admitted { breaker: self, is_try, is_settled: false })
    }

    /// No code panics while it holds the lock, and none waits.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long it takes until an exchange may try; `None` if exchanges are sent. If one tries at this moment, the next
    /// one is expected to know after the shortest wait.
    pub(crate) fn held_back_for(&self) -> Option<Duration> {
        let state = *self.lock();
        match state {
            State::Closed { .. } => None,
            state => Some(state.wait(Instant::now()).unwrap_or(WAIT_MIN)),
        }
    }

    /// Changes the state.
    fn settle<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let settled = change(&mut self.lock());
        self.decided.notify_waiters();
        settled
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
        let mut state = self.breaker.lock();
        if !self.is_try && matches!(*state, State::Closed { .. }) {
            // Nearly always: there is no exchange to wake.
            return state.note_reached();
        }
        drop(state);
        self.breaker.settle(State::note_reached);
    }

    /// The transport failed. Returns whether exchanges are held back from now on.
    pub(crate) fn fault(mut self) -> bool {
        self.is_settled = true;
        let is_try = self.is_try;
        self.breaker.settle(|state| state.note_fault(is_try, Instant::now()))
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if self.is_try && !self.is_settled {
            self.breaker.settle(|state| state.note_abandoned(Instant::now()));
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
        let breaker = Breaker::of(State::Open { until: Instant::now(), wait: WAIT_MIN });
        let first = breaker.admit().unwrap();
        assert!(breaker.admit().is_none());
        drop(first);
        breaker.admit().unwrap().reached();
        assert!(breaker.admit().is_some_and(|admitted| !admitted.is_try));
    }

    #[tokio::test]
    async fn exchanges_that_wait_are_admitted_when_the_one_that_tries_reaches_the_server() {
        let until = Instant::now() + Duration::from_millis(20);
        let breaker = Breaker::of(State::Open { until, wait: WAIT_MIN });
        assert!(breaker.admit_within(Duration::ZERO).await.is_none());
        let within = Duration::from_secs(60);
        let first = breaker.admit_within(within).await.unwrap();
        assert!(first.is_try && Instant::now() >= until);
        let waits = async {
            let both = tokio::join!(breaker.admit_within(within), breaker.admit_within(within));
            assert!(!both.0.unwrap().is_try && !both.1.unwrap().is_try);
        };
        let ((), ()) = tokio::join!(waits, async {
            tokio::task::yield_now().await;
            first.reached();
        });
    }

    #[tokio::test]
    async fn an_exchange_that_waits_gives_up_when_the_next_try_comes_too_late() {
        let wait = Duration::from_secs(8);
        let breaker = Breaker::of(State::Open { until: Instant::now(), wait });
        let first = breaker.admit().unwrap();
        let waits = breaker.admit_within(Duration::from_secs(10));
        let (waited, _) = tokio::join!(waits, async {
            tokio::task::yield_now().await;
            first.fault()
        });
        assert!(waited.is_none(), "the next try is in 16 s");
    }

    #[test]
    fn it_tells_how_long_exchanges_are_held_back() {
        let breaker = Breaker::new();
        let mut all: Vec<_> = (0..FAULTS_MAX).map(|_| breaker.admit().unwrap()).collect();
        assert_eq!(breaker.held_back_for(), None);
        assert!(all.drain(..).any(Admitted::fault), "it opens");
        assert!(breaker.held_back_for().is_some_and(|wait| !wait.is_zero() && wait <= WAIT_MIN));
        let breaker = Breaker::of(State::Trying { wait: WAIT_MAX });
        assert_eq!(breaker.held_back_for(), Some(WAIT_MIN), "another exchange decides before");
    }
}
