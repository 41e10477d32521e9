//! Says once, at the end of a thread's turn, all that the thread has to say to a peer.
//!
//! A thread that serves clients takes up what has arrived at all of its connections before
//! it waits again, and much of that goes to a few peers. Said at once, each frame would be
//! written alone; at the end of the turn they are written together, and by this thread: to
//! wake another for it costs more than to write. What arrives from peers is for many of this
//! process's threads, and is read by one of its own, which wakes each once a turn.

use std::cell::RefCell;
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use tokio::runtime::{Handle, RuntimeFlavor};

thread_local! {
    /// Where this thread has one.
    static BELL: RefCell<Option<Arc<Bell>>> = const { RefCell::new(None) };
}

/// Has something to say to a peer.
pub(crate) trait Speaks: Send + Sync {
    /// Says it.
    fn speak(&self);

    /// Has another say it.
    fn wake(&self);
}

#[derive(Default)]
struct Bell(Mutex<Pulled>);

#[derive(Default)]
struct Pulled {
    /// Whom to wake: at most one for each call, which leaves its waker anew only when it
    /// has run.
    wakers: Vec<Waker>,
    /// What there is something to be said over: at most each direction of each link.
    lines: Vec<Arc<dyn Speaks>>,
    ringer: Option<Waker>,
    /// Its runtime has ended: nobody rings it any more.
    is_down: bool,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, Pulled> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the bell down when its runtime ends, on whichever thread.
struct Hanging(Arc<Bell>);

impl Drop for Hanging {
    fn drop(&mut self) {
        let mut pulled = self.0.lock();
        pulled.is_down = true;
        let (wakers, lines) = (mem::take(&mut pulled.wakers), mem::take(&mut pulled.lines));
        drop(pulled);
        wakers.into_iter().for_each(Waker::wake);
        lines.iter().for_each(|line| line.wake());
    }
}

/// From now on what the calling thread has to say to peers is said once in each of its turns.
/// Has no effect but on a thread that runs its tasks alone.
pub fn hang() {
    let Ok(runtime) = Handle::try_current() else { return };
    if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread {
        return;
    }
    let bell = BELL.with(|here| {
        let mut here = here.borrow_mut();
        let hangs = here.as_ref().is_some_and(|bell| !bell.lock().is_down);
        (!hangs).then(|| Arc::clone(here.insert(Arc::default())))
    });
    let Some(bell) = bell else { return };
    let hanging = Hanging(bell);
    runtime.spawn(async move {
        poll_fn(|context| {
            let mut pulled = hanging.0.lock();
            pulled.ringer = Some(context.waker().clone());
            let (mut wakers, mut lines) =
                (mem::take(&mut pulled.wakers), mem::take(&mut pulled.lines));
            drop(pulled);
            wakers.drain(..).for_each(Waker::wake);
            lines.drain(..).for_each(|line| line.speak());
            // Their room is used again.
            let mut pulled = hanging.0.lock();
            if pulled.wakers.is_empty() {
                pulled.wakers = wakers;
            }
            if pulled.lines.is_empty() {
                pulled.lines = lines;
            }
            Poll::<()>::Pending
        })
        .await;
    });
}

/// Wakes at the end of this thread's turn, or now where it has no bell.
pub(crate) fn ring(waker: Waker) {
    if let Some(waker) = pull(waker, |pulled, waker| pulled.wakers.push(waker)) {
        waker.wake();
    }
}

/// Has this line speak at the end of this thread's turn. Where the thread has no bell, and
/// may be in the middle of anything, another speaks.
pub(crate) fn ring_for(line: &Arc<dyn Speaks>) {
    let add = |pulled: &mut Pulled, line: &Arc<dyn Speaks>| {
        if !pulled.lines.iter().any(|other| Arc::ptr_eq(other, line)) {
            pulled.lines.push(line.clone());
        }
    };
    if let Some(line) = pull(line, add) {
        line.wake();
    }
}

/// Adds to what this thread's bell is rung for. Gives it back where there is no bell.
fn pull<T>(what: T, add: impl FnOnce(&mut Pulled, T)) -> Option<T> {
    let Some(bell) = BELL.try_with(|bell| bell.borrow().clone()).ok().flatten() else {
        return Some(what);
    };
    let mut pulled = bell.lock();
    if pulled.is_down {
        return Some(what);
    }
    add(&mut pulled, what);
    let ringer = pulled.ringer.take();
    drop(pulled);
    if let Some(ringer) = ringer {
        ringer.wake();
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
    fn whoever_is_rung_for_in_a_turn_is_woken_after_it() {
        let woken = Arc::new(Woken::default());
        runtime().block_on(async {
            hang();
            yield_now().await;
            for turn in 1..4 {
                ring(woken.clone().into());
                ring(woken.clone().into());
                assert_eq!(woken.times(), 2 * (turn - 1));
                yield_now().await;
                assert_eq!(woken.times(), 2 * turn);
            }
        });
    }

    #[test]
    fn who_rings_before_the_bell_was_ever_polled_is_heard() {
        let woken = Arc::new(Woken::default());
        runtime().block_on(async {
            hang();
            ring(woken.clone().into());
            yield_now().await;
            assert_eq!(woken.times(), 1);
        });
    }

    #[test]
    fn without_a_bell_it_is_woken_at_once() {
        let woken = Arc::new(Woken::default());
        ring(woken.clone().into());
        assert_eq!(woken.times(), 1);
        let shared = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        shared.block_on(async {
            hang();
            ring(woken.clone().into());
        });
        assert_eq!(woken.times(), 2);
    }

    #[test]
    fn a_bell_whose_runtime_ended_on_another_thread_keeps_nobody_waiting() {
        let woken = Arc::new(Woken::default());
        let elsewhere = runtime();
        elsewhere.block_on(async {
            hang();
            yield_now().await;
        });
        std::thread::spawn(move || drop(elsewhere)).join().unwrap();
        ring(woken.clone().into());
        assert_eq!(woken.times(), 1);
    }

    #[test]
    fn nobody_is_forgotten_when_the_runtime_ends_and_the_next_has_a_bell_of_its_own() {
        let woken = Arc::new(Woken::default());
        let first = runtime();
        first.block_on(async {
            hang();
            yield_now().await;
            ring(woken.clone().into());
        });
        drop(first);
        assert_eq!(woken.times(), 1);
        ring(woken.clone().into());
        assert_eq!(woken.times(), 2);
        runtime().block_on(async {
            hang();
            yield_now().await;
            ring(woken.clone().into());
            assert_eq!(woken.times(), 2);
            yield_now().await;
            assert_eq!(woken.times(), 3);
        });
    }
}
