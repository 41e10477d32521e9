//! Bounds how many servers of a node begin to run at the same time.
//!
//! The beginning of a process takes milliseconds of a core: its guards, its namespaces, its program. With
//! many of them at once the kernel gives the threads of the node, and the servers of other tenants, a small
//! part of the machine. So each core has one turn, and tenants get turns one after another. A turn ends when
//! the server writes its first line, or after [`TURN_MIN`]: a program that waits for something has that time
//! for its guards only. While it computes or waits for a core, its turn goes on up to [`TURN_MAX`]: on a busy
//! core a guard has done little in [`TURN_MIN`], and each start beside it leaves less to all others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fairness::FairQueue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::core_use::wants_core;

/// How long a turn is at least, if the server writes nothing.
const TURN_MIN: Duration = Duration::from_millis(20);

/// The longest turn.
const TURN_MAX: Duration = Duration::from_millis(100);

/// How often a turn that goes on looks whether the server still wants a core.
const LOOK: Duration = Duration::from_millis(10);

/// The turns of a node.
pub(super) struct StartTurns(Arc<Mutex<State>>);

struct State {
    free: usize,
    /// Each that waits has the permit of a child, so their number is bounded.
    waiting: FairQueue<Arc<str>, oneshot::Sender<StartTurn>>,
}

/// Permits the beginning of one process, until it is dropped.
pub(super) struct StartTurn {
    turns: Arc<Mutex<State>>,
    /// `None`: it has not begun.
    end: Option<End>,
}

/// When a turn ends.
#[derive(Clone, Copy)]
struct End {
    /// Unless the server wants a core then.
    next: Instant,
    latest: Instant,
}

fn lock(turns: &Mutex<State>) -> MutexGuard<'_, State> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StartTurns {
    /// So many turns at the same time.
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(State { free: most.max(1), waiting: FairQueue::default() })))
    }

    /// Waits for a turn of the tenant.
    pub(super) async fn take(&self, tenant: &Arc<str>) -> StartTurn {
        let waits = {
            let mut state = lock(&self.0);
            match state.free.checked_sub(1) {
                Some(left) => {
                    state.free = left;
                    None
                }
                None => {
                    let (turn, given) = oneshot::channel();
                    state.waiting.add(Arc::clone(tenant), turn);
                    Some(given)
                }
            }
        };
        match waits {
            // The queue lives as long as a turn, and each turn goes to the next that waits.
            Some(given) => given.await.expect("a turn comes to each that waits"),
            None => StartTurn { turns: Arc::clone(&self.0), end: None },
        }
    }
}

impl StartTurn {
    /// The process was started: its time begins.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        self.end = Some(End { next: now + TURN_MIN, latest: now + TURN_MAX });
    }

    /// Returns when the turn of this process has lasted long enough. Cancel safe.
    pub(super) async fn over(&mut self, pid: u32) {
        while let Some(End { next, latest }) = self.end {
            sleep_until(next).await;
            if next >= latest || !wants_core(pid) {
                return;
            }
            self.end = Some(End { next: (Instant::now() + LOOK).min(latest), latest });
        }
    }
}

impl Drop for StartTurn {
    fn drop(&mut self) {
        let mut state = lock(&self.turns);
        let Some(next) = state.waiting.find_next(|next| (!next.is_closed()).then_some(next)) else {
            state.free += 1;
            return;
        };
        drop(state);
        // If the receiver goes away now, the turn is dropped where it was sent, and goes to the next.
        let _unneeded = next.send(Self { turns: Arc::clone(&self.turns), end: None });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::core_use::tests::{COMPUTES, Script};
    use super::*;

    #[tokio::test]
    async fn tenants_get_turns_one_after_another_and_none_is_lost() {
        let (turns, a, b) = (StartTurns::new(1), Arc::from("a"), Arc::from("b"));
        let first = turns.take(&a).await;
        let (mut second, mut third) = (Box::pin(turns.take(&a)), Box::pin(turns.take(&a)));
        let mut other = Box::pin(turns.take(&b));
        for waiting in [&mut second, &mut third, &mut other] {
            assert!(waiting.now_or_never().is_none());
        }
        drop(first);
        let second = second.now_or_never().expect("the oldest of the first tenant");
        assert!(third.as_mut().now_or_never().is_none());
        drop(second);
        assert!(third.as_mut().now_or_never().is_none(), "it is the turn of the other tenant");
        // It was given its turn, and gives up before it looks.
        drop(other);
        drop(third.now_or_never().expect("the turn that was given back"));
        // One that gave up before gets none.
        let held = turns.take(&a).await;
        assert!(turns.take(&b).now_or_never().is_none());
        drop(held);
        assert!(turns.take(&a).now_or_never().is_some());
    }

    /// How long the turn of a server lasts that runs this script, and computes for 45 ms at most. Timers count whole
    /// milliseconds.
    async fn length_for(script: &str, stops: bool) -> Duration {
        let mut server = Script::start(script);
        server.wait_for(script == COMPUTES);
        let mut turn = StartTurns::new(1).take(&"a".into()).await;
        // Until the process is there, its time does not pass.
        tokio::time::sleep(TURN_MAX).await;
        let begun = Instant::now();
        turn.begin();
        tokio::select! {
            () = turn.over(server.pid()) => return begun.elapsed(),
            () = tokio::time::sleep(Duration::from_millis(45)) => {}
        }
        if stops {
            server.stop_computing();
            server.wait_for(false);
        }
        turn.over(server.pid()).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_goes_on_while_the_server_wants_a_core() {
        for (script, stops, least) in [
            ("read line", false, TURN_MIN),
            (COMPUTES, true, Duration::from_millis(45)),
            (COMPUTES, false, TURN_MAX),
        ] {
            let took = length_for(script, stops).await;
            assert!((least..least + LOOK).contains(&took), "{script}, {stops}: {took:?}");
        }
    }
}
