//! The threads on which sessions run.
//!
//! A session that is claimed for a client of this node runs on the thread of that client's
//! connection. A session that is claimed for a peer has no such thread and is placed in turn.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use actix::{Arbiter, ArbiterHandle};

/// The most threads that are registered: more than any machine serves clients with. Further threads
/// run only the sessions that are created on them.
const THREADS_MAX: usize = 1_024;

#[derive(Default)]
pub(crate) struct Arbiters(Mutex<ById>);

#[derive(Default)]
struct ById {
    threads: Vec<(ThreadId, ArbiterHandle)>,
    next: usize,
}

impl Arbiters {
    /// Registers the calling thread: sessions may be placed on it.
    pub(crate) fn register(&self) {
        let Some(arbiter) = Arbiter::try_current() else { return };
        let here = thread::current().id();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = known.threads.iter().any(|(thread, _)| *thread == here);
        if !is_known && known.threads.len() < THREADS_MAX {
            known.threads.push((here, arbiter));
        }
    }

    /// Runs the work on a registered thread: the calling one if it is registered, else the next in
    /// turn. Without registered threads it runs on the calling thread's own arbiter. Returns
    /// whether an arbiter has accepted the work.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) -> bool {
        self.pick().is_some_and(|arbiter| arbiter.spawn_fn(work))
    }

    fn pick(&self) -> Option<ArbiterHandle> {
        let here = thread::current().id();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Drops the threads that have ended: they accept no work.
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
