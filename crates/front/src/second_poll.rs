//! The body that arrived with its head, and that the HTTP layer has not passed on yet.
//!
//! The HTTP layer polls the answer to a request when it has read the head. Then it passes the body on, which
//! wakes the task that waits for it, and polls the answer again in the same run of the connection's task. So the
//! waker of the task, if the answer registered it, would run the whole connection once more for nothing.
//! [`SecondPoll::come`] waits without a waker. [`Repolled`] wakes the task if no second poll came, and tells the
//! connection that a run begins.

use std::cell::Cell;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::head_timeout::HeadProgress;

/// Whether the answer to a request waits for the next poll without a waker.
#[derive(Debug, Default)]
pub(crate) struct SecondPoll {
    is_awaited: Cell<bool>,
}

impl SecondPoll {
    /// Resolves at the second poll.
    pub(crate) async fn come(&self) {
        let mut is_second = false;
        poll_fn(|_| {
            self.is_awaited.set(!is_second);
            match mem::replace(&mut is_second, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// A connection whose task is woken if an answer still waits for its second poll.
pub(crate) struct Repolled<F> {
    served: Pin<Box<F>>,
    heads: Rc<HeadProgress>,
}

impl<F> Repolled<F> {
    /// The future that serves the connection with this state.
    pub(crate) fn new(served: F, heads: Rc<HeadProgress>) -> Self {
        Self { served: Box::pin(served), heads }
    }
}

impl<F: Future> Future for Repolled<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.heads.begin_run();
        let polled = self.served.as_mut().poll(context);
        if self.heads.second_poll().is_awaited.take() && polled.is_pending() {
            context.waker().wake_by_ref();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The wake-ups until a connection is served whose answer is polled so often in each run of its task.
    fn wakes(polls: usize) -> usize {
        let heads = HeadProgress::new();
        let of_answer = Rc::clone(&heads);
        let mut answer = Box::pin(async move { of_answer.second_poll().come().await });
        let connection = poll_fn(move |context| {
            let mut polls = (0..polls).map(|_| answer.as_mut().poll(context));
            polls.find(Poll::is_ready).unwrap_or(Poll::Pending)
        });
        let mut connection = Repolled::new(connection, heads);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut runs = 0;
        while Pin::new(&mut connection).poll(&mut Context::from_waker(&waker)).is_pending() {
            runs += 1;
            assert_eq!(wakes.0.load(Ordering::Relaxed), runs, "the task of a connection sleeps");
        }
        wakes.0.load(Ordering::Relaxed)
    }

    #[test]
    fn a_task_is_woken_only_if_no_second_poll_comes() {
        assert_eq!((wakes(2), wakes(1)), (0, 1));
    }
}
