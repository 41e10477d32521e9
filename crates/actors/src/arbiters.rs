//! Threads that sessions may live on.
//!
//! A session that is claimed for a client of this node lives where that client's connection
//! is; one that is claimed for a peer has no such thread and is given one in turn.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use actix::{Arbiter, ArbiterHandle};

/// Most threads that are remembered: more than any machine serves clients with. Further
/// ones hold only sessions that are made on them.
const THREADS_MAX: usize = 1_024;

#[derive(Default)]
pub(crate) struct Arbiters(Mutex<ById>);

#[derive(Default)]
struct ById {
    threads: Vec<(ThreadId, ArbiterHandle)>,
    next: usize,
}

impl Arbiters {
    /// From now on sessions may be brought to the calling thread.
    pub(crate) fn register(&self) {
        let Some(arbiter) = Arbiter::try_current() else { return };
        let here = thread::current().id();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = known.threads.iter().any(|(thread, _)| *thread == here);
        if !is_known && known.threads.len() < THREADS_MAX {
            known.threads.push((here, arbiter));
        }
    }

    /// Does it on such a thread: the calling one if it is one, else the next in turn. Where
    /// there is none, on the calling thread's own arbiter. Answers whether it will be done.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) -> bool {
        self.pick().is_some_and(|arbiter| arbiter.spawn_fn(work))
    }

    fn pick(&self) -> Option<ArbiterHandle> {
        let here = thread::current().id();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread that has ended takes nothing.
        known.threads.retain(|(_, arbiter)| arbiter.spawn(std::future::ready(())));
        if let Some((_, arbiter)) = known.threads.iter().find(|(thread, _)| *thread == here) {
            return Some(arbiter.clone());
        }
        let next = known.next;
        known.next = next.wrapping_add(1);
        let in_turn = next.checked_rem(known.threads.len()).and_then(|at| known.threads.get(at));
        in_turn.map(|(_, arbiter)| arbiter.clone()).or_else(Arbiter::try_current)
    }
}
