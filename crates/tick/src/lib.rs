//! Runs work at the end of the current tick of a thread's event loop.
//!
//! A thread that serves clients handles all input that has arrived before it waits again. Most of
//! its output goes to few destinations: peers and the store. Sent at once, each message would cost
//! a system call or wake another thread; at the end of the tick all messages are sent together.
//! Likewise, input from one destination is for many tasks, and each of them is woken once a tick.
//!
//! The end of the tick is the run of one task: the first piece of work wakes it, and it runs behind
//! all tasks that were ready then. No timer is involved, so no message is delayed beyond the tick.

use std::cell::RefCell;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::runtime::{Handle, Id, RuntimeFlavor};

thread_local! {
    /// The queue of this thread, if it has one.
    static TICK_QUEUE: RefCell<Option<TickQueue>> = const { RefCell::new(None) };
}

/// A piece of work for the end of a tick.
pub trait Deferred: Send + Sync {
    /// Runs the work on the thread that deferred it. Must not block.
    fn perform(&self);

    /// Passes the work to another thread, or drops it: this thread has no ticks, or its runtime
    /// ended before the tick did.
    fn perform_elsewhere(&self);
}

/// The queue of one thread, for one of its runtimes.
#[derive(Clone)]
struct TickQueue {
    runtime: Id,
    pending: Arc<Mutex<Pending>>,
}

#[derive(Default)]
struct Pending {
    /// The tasks to wake: at most one for each piece of work in progress, which adds its waker
    /// again only after it has run.
    wakers: Vec<Waker>,
    /// The work, each piece at most once: bounded by the directions of links and the stores.
    work: Vec<Arc<dyn Deferred>>,
    /// Wakes the task that empties the queue.
    emptier: Option<Waker>,
    /// Whether the runtime has ended, and that task with it.
    is_down: bool,
}

fn lock(pending: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Empties the queue when its runtime ends, on any thread.
struct Installed(Arc<Mutex<Pending>>);

impl Drop for Installed {
    fn drop(&mut self) {
        let mut pending = lock(&self.0);
        pending.is_down = true;
        let (wakers, work) = (mem::take(&mut pending.wakers), mem::take(&mut pending.work));
        drop(pending);
        wakers.into_iter().for_each(Waker::wake);
        work.iter().for_each(|work| work.perform_elsewhere());
    }
}

/// Installs a queue for the calling thread and its current runtime. Returns `false`, without
/// effect, if the thread is not in a current-thread runtime: such a thread has no ticks.
pub fn install() -> bool {
    let Ok(runtime) = Handle::try_current() else { return false };
    if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
        return false;
    }
    let installed = TICK_QUEUE.with(|here| {
        let mut here = here.borrow_mut();
        let is_installed = here
            .as_ref()
            .is_some_and(|queue| queue.runtime == runtime.id() && !lock(&queue.pending).is_down);
        (!is_installed).then(|| {
            let queue = TickQueue { runtime: runtime.id(), pending: Arc::default() };
            Installed(Arc::clone(&here.insert(queue).pending))
        })
    });
    if let Some(installed) = installed {
        runtime.spawn(empty_each_tick(installed));
    }
    true
}

async fn empty_each_tick(installed: Installed) {
    poll_fn(|context| {
        let mut pending = lock(&installed.0);
        pending.emptier = Some(context.waker().clone());
        let (mut wakers, mut work) = (mem::take(&mut pending.wakers), mem::take(&mut pending.work));
        drop(pending);
        wakers.drain(..).for_each(Waker::wake);
        work.drain(..).for_each(|work| work.perform());
        // Reuses the allocations.
        let mut pending = lock(&installed.0);
        if pending.wakers.is_empty() {
            pending.wakers = wakers;
        }
        if pending.work.is_empty() {
            pending.work = work;
        }
        Poll::<()>::Pending
    })
    .await;
}

/// Wakes at the end of this tick, or at once if the thread has no ticks.
pub fn defer_wake(waker: Waker) {
    if let Some(waker) = enqueue(waker, |pending, waker| pending.wakers.push(waker)) {
        waker.wake();
    }
}

/// Runs work at the end of this tick, once. If the thread has no ticks, the work is passed to
/// [`Deferred::perform_elsewhere`], since the thread may hold locks.
pub fn defer(work: &Arc<dyn Deferred>) {
    let add = |pending: &mut Pending, work: &Arc<dyn Deferred>| {
        if !pending.work.iter().any(|other| Arc::ptr_eq(other, work)) {
            pending.work.push(work.clone());
        }
    };
    if let Some(work) = enqueue(work, add) {
        work.perform_elsewhere();
    }
}

/// Adds to the queue of this thread. Returns the argument if the thread has no queue.
fn enqueue<T>(what: T, add: impl FnOnce(&mut Pending, T)) -> Option<T> {
    let Some(queue) = TICK_QUEUE.try_with(|queue| queue.borrow().clone()).ok().flatten() else {
        return Some(what);
    };
    let mut pending = lock(&queue.pending);
    if pending.is_down {
        return Some(what);
    }
    add(&mut pending, what);
    let emptier = pending.emptier.take();
    drop(pending);
    if let Some(emptier) = emptier {
        emptier.wake();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::runtime::{Builder, Runtime};
    use tokio::task::yield_now;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Woken {
        fn times(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    #[test]
    fn a_waker_that_is_enqueued_in_a_tick_is_woken_at_its_end() {
        let woken = Arc::new(Woken::default());
        runtime().block_on(async {
            install();
            yield_now().await;
            for turn in 1..4 {
                defer_wake(woken.clone().into());
                defer_wake(woken.clone().into());
                assert_eq!(woken.times(), 2 * (turn - 1));
                yield_now().await;
                assert_eq!(woken.times(), 2 * turn);
            }
        });
    }

    #[test]
    fn a_waker_that_is_enqueued_before_the_first_tick_ends_is_woken() {
        let woken = Arc::new(Woken::default());
        runtime().block_on(async {
            install();
            defer_wake(woken.clone().into());
            yield_now().await;
            assert_eq!(woken.times(), 1);
        });
    }

    #[test]
    fn a_thread_without_a_queue_wakes_at_once() {
        let woken = Arc::new(Woken::default());
        defer_wake(woken.clone().into());
        assert_eq!(woken.times(), 1);
        let shared = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        shared.block_on(async {
            install();
            defer_wake(woken.clone().into());
        });
        assert_eq!(woken.times(), 2);
    }

    #[test]
    fn a_queue_whose_runtime_ended_on_another_thread_wakes_at_once() {
        let woken = Arc::new(Woken::default());
        let elsewhere = runtime();
        elsewhere.block_on(async {
            install();
            yield_now().await;
        });
        std::thread::spawn(move || drop(elsewhere)).join().unwrap();
        defer_wake(woken.clone().into());
        assert_eq!(woken.times(), 1);
    }

    #[test]
    fn a_runtime_that_ends_wakes_every_waker_and_the_next_one_has_a_queue_of_its_own() {
        let woken = Arc::new(Woken::default());
        let first = runtime();
        first.block_on(async {
            install();
            yield_now().await;
            defer_wake(woken.clone().into());
        });
        drop(first);
        assert_eq!(woken.times(), 1);
        defer_wake(woken.clone().into());
        assert_eq!(woken.times(), 2);
        runtime().block_on(async {
            install();
            yield_now().await;
            defer_wake(woken.clone().into());
            assert_eq!(woken.times(), 2);
            yield_now().await;
            assert_eq!(woken.times(), 3);
        });
    }

    /// Counts its runs, and its runs elsewhere.
    #[derive(Default)]
    struct Counted {
        run: AtomicUsize,
        elsewhere: AtomicUsize,
    }

    impl Deferred for Counted {
        fn perform(&self) {
            self.run.fetch_add(1, Ordering::SeqCst);
        }

        fn perform_elsewhere(&self) {
            self.elsewhere.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[track_caller]
    fn check_runs(counted: &Counted, run: usize, elsewhere: usize) {
        let runs = (counted.run.load(Ordering::SeqCst), counted.elsewhere.load(Ordering::SeqCst));
        assert_eq!(runs, (run, elsewhere));
    }

    #[test]
    fn work_of_a_tick_runs_once_at_its_end() {
        let counted = Arc::new(Counted::default());
        let work: Arc<dyn Deferred> = counted.clone();
        runtime().block_on(async {
            assert!(install());
            for tick in 1..4 {
                defer(&work);
                defer(&work);
                check_runs(&counted, tick - 1, 0);
                yield_now().await;
                check_runs(&counted, tick, 0);
            }
        });
    }

    #[test]
    fn work_of_a_thread_without_ticks_or_of_a_runtime_that_ends_runs_elsewhere() {
        let counted = Arc::new(Counted::default());
        let work: Arc<dyn Deferred> = counted.clone();
        assert!(!install());
        defer(&work);
        check_runs(&counted, 0, 1);
        let first = runtime();
        first.block_on(async {
            install();
            yield_now().await;
            defer(&work);
        });
        drop(first);
        check_runs(&counted, 0, 2);
    }

    #[test]
    fn a_thread_that_enters_another_runtime_has_the_ticks_of_that_one() {
        let counted = Arc::new(Counted::default());
        let work: Arc<dyn Deferred> = counted.clone();
        let first = runtime();
        first.block_on(async { assert!(install()) });
        runtime().block_on(async {
            assert!(install());
            defer(&work);
            yield_now().await;
            check_runs(&counted, 1, 0);
        });
    }
}
