//! Bounds how many servers of a node begin to run at the same time.
//!
//! The beginning of a process takes milliseconds of a core: its guards, its namespaces, its program. With
//! many of them at once the kernel gives the threads of the node, and the servers of other tenants, a small
//! part of the machine. So each core has one turn, and tenants get turns one after another. A turn ends when
//! the server writes its first line, or after [`TURN_MAX`]: a program that needs long to start has that time
//! for its guards only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fairness::FairQueue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

/// The longest turn.
const TURN_MAX: Duration = Duration::from_millis(20);

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
    /// `None`: it was not received.
    until: Option<Instant>,
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
        let mut turn = match waits {
            // The queue lives as long as a turn, and each turn goes to the next that waits.
            Some(given) => given.await.expect("a turn comes to each that waits"),
            None => StartTurn { turns: Arc::clone(&self.0), until: None },
        };
        turn.until = Some(Instant::now() + TURN_MAX);
        turn
    }
}

impl StartTurn {
    /// Returns when the turn has lasted long enough.
    pub(super) async fn over(&self) {
        if let Some(until) = self.until {
            sleep_until(until).await;
        }
    }
}

impl Drop for StartTurn {
    fn drop(&mut self) {
        let mut state = lock(&self.turns);
        while let Some(next) = state.waiting.take_next() {
            if next.is_closed() {
                continue;
            }
            drop(state);
            // If the receiver goes away now, the turn is dropped where it was sent, and goes to the next.
            let _unneeded = next.send(Self { turns: Arc::clone(&self.turns), until: None });
            return;
        }
        state.free += 1;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

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

    #[tokio::test]
    async fn a_turn_is_over_after_a_while() {
        let turns = StartTurns::new(1);
        let (turn, begun) = (turns.take(&"a".into()).await, Instant::now());
        turn.over().await;
        assert!(begun.elapsed() >= TURN_MAX - Duration::from_millis(1));
    }
}
