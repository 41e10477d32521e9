//! Whether clients are asked to close their connections to this server, and whether requests
//! still use it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// How long no request may have arrived before the server counts as unused. The pause is longer
/// once the balancer sends no more requests here, and shorter while the balancer still does.
const QUIET: Duration = Duration::from_secs(1);

/// State that the responses of a server share.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    /// Whether `state` is not `Serving`, for the responses, which take no lock.
    begun: AtomicBool,
    state: Mutex<DrainState>,
    /// Requests that are being answered and streams that are open.
    present: AtomicUsize,
    /// Counts every request; wraps around.
    came: AtomicUsize,
    left: Notify,
}

/// Why the node drains, if it does.
#[derive(Debug, Default)]
enum DrainState {
    /// It does not.
    #[default]
    Serving,
    /// An operator asked for it, and can take it back. The task releases the sessions.
    ByOperator(AbortHandle),
    /// The process is about to end.
    Stopping,
}

/// The result of [`Drain::take_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBack {
    /// The drain ended.
    Now,
    /// There was none.
    NotDraining,
    /// The process is about to end, which cannot be taken back.
    Stopping,
}

impl Drain {
    /// Asks clients to close their connections from now on, for an operator. Calls `begin` unless
    /// the node drains already; it starts the task that releases the sessions.
    pub(crate) fn begin_by_operator(&self, begin: impl FnOnce() -> AbortHandle) {
        let mut state = self.lock();
        if matches!(*state, DrainState::Serving) {
            *state = DrainState::ByOperator(begin());
            self.begun.store(true, Ordering::Relaxed);
        }
    }

    /// Asks clients to close their connections from now on, for a process that is about to end.
    pub(crate) fn begin_stop(&self) {
        *self.lock() = DrainState::Stopping;
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Ends a drain that an operator began: stops its task, and calls `resume`. A stop of the
    /// process that begins meanwhile waits for `resume`, which cannot undo anything of the stop.
    pub(crate) fn take_back(&self, resume: impl FnOnce()) -> TakenBack {
        let mut state = self.lock();
        match &*state {
            DrainState::Serving => return TakenBack::NotDraining,
            DrainState::Stopping => return TakenBack::Stopping,
            DrainState::ByOperator(releasing) => releasing.abort(),
        }
        resume();
        *state = DrainState::Serving;
        self.begun.store(false, Ordering::Relaxed);
        TakenBack::Now
    }

    /// Are clients asked to close their connections?
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// No code panics under this lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, DrainState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready when no request or stream is open and none has arrived for [`QUIET`].
    pub(crate) async fn over(&self) {
        loop {
            let left = self.left.notified();
            let came = self.came.load(Ordering::Acquire);
            if self.present.load(Ordering::Acquire) > 0 {
                left.await;
                continue;
            }
            tokio::time::sleep(QUIET).await;
            if self.came.load(Ordering::Acquire) == came {
                return;
            }
        }
    }
}

/// A request or stream that uses the server until this guard is dropped.
#[derive(Debug)]
pub(crate) struct Present(Arc<Drain>);

impl Present {
    /// Counts one more request or stream.
    pub(crate) fn new(drain: &Arc<Drain>) -> Self {
        drain.came.fetch_add(1, Ordering::AcqRel);
        drain.present.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(drain))
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        if self.0.present.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.left.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Returns when the drain is over, in milliseconds, where `callers` arrive and leave after
    /// these delays.
    async fn check(callers: &[(u64, u64)], over: u64) {
        let drain = Arc::new(Drain::default());
        let began = Instant::now();
        let visitors = callers.iter().map(|&(after, stays)| {
            let drain = Arc::clone(&drain);
            tokio::spawn(async move {
                sleep(Duration::from_millis(after)).await;
                let present = Present::new(&drain);
                sleep(Duration::from_millis(stays)).await;
                drop(present);
            })
        });
        let visitors: Vec<_> = visitors.collect();
        drain.over().await;
        let millis = began.elapsed().as_millis() as u64;
        // Tokio's timer may fire a millisecond late.
        assert!((over..over + 10).contains(&millis), "over after {millis} ms");
        visitors.into_iter().for_each(|visitor| visitor.abort());
    }

    #[tokio::test]
    async fn a_drain_by_an_operator_can_be_taken_back_and_the_end_of_the_process_cannot() {
        let drain = Drain::default();
        let never = || unreachable!("nothing is to be taken back");
        assert_eq!(drain.take_back(never), TakenBack::NotDraining);
        for _ in 0..2 {
            let task = tokio::spawn(std::future::pending::<()>());
            drain.begin_by_operator(|| task.abort_handle());
            drain.begin_by_operator(|| unreachable!("it drains already"));
            assert!(drain.has_begun());
            let mut resumed = false;
            assert_eq!(drain.take_back(|| resumed = true), TakenBack::Now);
            assert!(resumed && !drain.has_begun());
            assert!(task.await.unwrap_err().is_cancelled());
        }
        drain.begin_stop();
        drain.begin_by_operator(|| unreachable!("it stops already"));
        assert_eq!(drain.take_back(never), TakenBack::Stopping);
        assert!(drain.has_begun());
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_is_over_when_no_request_is_open_and_none_has_arrived_for_a_moment() {
        check(&[], 1_000).await;
        check(&[(0, 5_000)], 6_000).await;
        check(&[(0, 5_000), (5_500, 10)], 7_000).await;
        check(&[(500, 10), (900, 20), (1_800, 200)], 3_000).await;
        check(&[(0, 10), (5, 3_000)], 4_005).await;
    }
}
