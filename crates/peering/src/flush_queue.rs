//! Writes the frames of one tick of a thread's event loop together, at its end.
//!
//! A thread that serves clients handles what has arrived at all of its connections before it
//! waits again, and much of that goes to a few peers. Written at once, each frame would be a
//! system call; at the end of the tick they are one, by this thread: to wake another for it
//! costs more than to write. What arrives from peers is for many threads of this process, and
//! is read by one of its own, which wakes each of them once a tick.

use std::cell::RefCell;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::runtime::{Handle, RuntimeFlavor};

thread_local! {
    /// That of this thread, where it has one.
    static FLUSH_QUEUE: RefCell<Option<Arc<FlushQueue>>> = const { RefCell::new(None) };
}

/// The writing end of a connection to a peer.
pub(crate) trait Flush: Send + Sync {
    /// Writes it.
    fn flush(&self);

    /// Has another thread write it.
    fn flush_elsewhere(&self);
}

#[derive(Default)]
struct FlushQueue(Mutex<Pending>);

#[derive(Default)]
struct Pending {
    /// Whom to wake: at most one for each call, which leaves its waker anew only when it
    /// has run.
    wakers: Vec<Waker>,
    /// The connections that have something to write: at most each direction of each link.
    connections: Vec<Arc<dyn Flush>>,
    flusher: Option<Waker>,
    /// Its runtime has ended, and with it the task that flushes.
    is_down: bool,
}

impl FlushQueue {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Empties the queue when its runtime ends, on whichever thread.
struct Installed(Arc<FlushQueue>);

impl Drop for Installed {
    fn drop(&mut self) {
        let mut pending = self.0.lock();
        pending.is_down = true;
        let (wakers, connections) =
            (mem::take(&mut pending.wakers), mem::take(&mut pending.connections));
        drop(pending);
        wakers.into_iter().for_each(Waker::wake);
        connections.iter().for_each(|connection| connection.flush_elsewhere());
    }
}

/// From now on the calling thread writes to peers once in each tick of its event loop.
/// Has no effect but on a thread with a runtime of its own.
pub fn install() {
    let Ok(runtime) = Handle::try_current() else { return };
    if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
        return;
    }
    let queue = FLUSH_QUEUE.with(|here| {
        let mut here = here.borrow_mut();
        let is_installed = here.as_ref().is_some_and(|queue| !queue.lock().is_down);
        (!is_installed).then(|| Arc::clone(here.insert(Arc::default())))
    });
    let Some(queue) = queue else { return };
    let installed = Installed(queue);
    runtime.spawn(async move {
        poll_fn(|context| {
            let mut pending = installed.0.lock();
            pending.flusher = Some(context.waker().clone());
            let (mut wakers, mut connections) =
                (mem::take(&mut pending.wakers), mem::take(&mut pending.connections));
            drop(pending);
            wakers.drain(..).for_each(Waker::wake);
            connections.drain(..).for_each(|connection| connection.flush());
            // Their room is used again.
            let mut pending = installed.0.lock();
            if pending.wakers.is_empty() {
                pending.wakers = wakers;
            }
            if pending.connections.is_empty() {
                pending.connections = connections;
            }
            Poll::<()>::Pending
        })
        .await;
    });
}

/// Wakes at the end of this tick, or now where the thread has no flush queue.
pub(crate) fn wake_at_flush(waker: Waker) {
    if let Some(waker) = enqueue(waker, |pending, waker| pending.wakers.push(waker)) {
        waker.wake();
    }
}

/// Flushes at the end of this tick. Where the thread has no flush queue, and may be in the
/// middle of anything, another thread does.
pub(crate) fn flush_later(connection: &Arc<dyn Flush>) {
    let add = |pending: &mut Pending, connection: &Arc<dyn Flush>| {
        if !pending.connections.iter().any(|other| Arc::ptr_eq(other, connection)) {
            pending.connections.push(connection.clone());
        }
    };
    if let Some(connection) = enqueue(connection, add) {
        connection.flush_elsewhere();
    }
}

/// Adds to the flush queue of this thread. Gives it back where there is none.
fn enqueue<T>(what: T, add: impl FnOnce(&mut Pending, T)) -> Option<T> {
    let Some(queue) = FLUSH_QUEUE.try_with(|queue| queue.borrow().clone()).ok().flatten() else {
        return Some(what);
    };
    let mut pending = queue.lock();
    if pending.is_down {
        return Some(what);
    }
    add(&mut pending, what);
    let flusher = pending.flusher.take();
    drop(pending);
    if let Some(flusher) = flusher {
        flusher.wake();
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
    fn what_is_enqueued_in_a_tick_is_woken_after_it() {
        let woken = Arc::new(Woken::default());
        runtime().block_on(async {
            install();
            yield_now().await;
            for turn in 1..4 {
                wake_at_flush(woken.clone().into());
                wake_at_flush(woken.clone().into());
                assert_eq!(woken.times(), 2 * (turn - 1));
                yield_now().await;
                assert_eq!(woken.times(), 2 * turn);
            }
        });
    }

    #[test]
    fn what_is_enqueued_before_the_first_flush_is_woken() {
        let woken = Arc::new(Woken::default());
        runtime().block_on(async {
            install();
            wake_at_flush(woken.clone().into());
            yield_now().await;
            assert_eq!(woken.times(), 1);
        });
    }

    #[test]
    fn without_a_flush_queue_it_is_woken_at_once() {
        let woken = Arc::new(Woken::default());
        wake_at_flush(woken.clone().into());
        assert_eq!(woken.times(), 1);
        let shared = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        shared.block_on(async {
            install();
            wake_at_flush(woken.clone().into());
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
        wake_at_flush(woken.clone().into());
        assert_eq!(woken.times(), 1);
    }

    #[test]
    fn a_runtime_that_ends_wakes_all_and_the_next_has_a_queue_of_its_own() {
        let woken = Arc::new(Woken::default());
        let first = runtime();
        first.block_on(async {
            install();
            yield_now().await;
            wake_at_flush(woken.clone().into());
        });
        drop(first);
        assert_eq!(woken.times(), 1);
        wake_at_flush(woken.clone().into());
        assert_eq!(woken.times(), 2);
        runtime().block_on(async {
            install();
            yield_now().await;
            wake_at_flush(woken.clone().into());
            assert_eq!(woken.times(), 2);
            yield_now().await;
            assert_eq!(woken.times(), 3);
        });
    }
}
