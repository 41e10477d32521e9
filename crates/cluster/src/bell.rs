//! Wakes another thread once for all that this one has for it, at the end of its turn.
//!
//! A thread that serves clients takes up what has arrived at all of its connections before
//! it waits again, and much of that goes to a few peers, over links that another thread
//! keeps. Woken for each, that thread would have a frame at a time to write; woken at the
//! end of the turn it finds them all.

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

#[derive(Default)]
struct Bell(Mutex<Pulled>);

#[derive(Default)]
struct Pulled {
    /// Whom to wake: at most one for each direction of a link and one for each call, since
    /// each of those leaves its waker anew only when it has run.
    wakers: Vec<Waker>,
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
        let wakers = mem::take(&mut pulled.wakers);
        drop(pulled);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// From now on what the calling thread has to say to peers is told to their links once for
/// each of its turns. Has no effect but on a thread that runs its tasks alone.
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
            let mut wakers = mem::take(&mut pulled.wakers);
            drop(pulled);
            wakers.drain(..).for_each(Waker::wake);
            // Its room is used again.
            let mut pulled = hanging.0.lock();
            if pulled.wakers.is_empty() {
                pulled.wakers = wakers;
            }
            Poll::<()>::Pending
        })
        .await;
    });
}

/// Wakes at the end of this thread's turn, or now where it has no bell.
pub(crate) fn ring(waker: Waker) {
    let Some(bell) = BELL.try_with(|bell| bell.borrow().clone()).ok().flatten() else {
        waker.wake();
        return;
    };
    let mut pulled = bell.lock();
    if pulled.is_down {
        drop(pulled);
        waker.wake();
        return;
    }
    pulled.wakers.push(waker);
    let ringer = pulled.ringer.take();
    drop(pulled);
    if let Some(ringer) = ringer {
        ringer.wake();
    }
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
