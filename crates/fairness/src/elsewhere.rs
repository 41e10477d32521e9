//! A future whose polls take long, as another thread polls it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;

use crate::{Computing, compute};

/// Runs each poll of a future as [`compute`] runs what takes long, within the runtime of the task that
/// waits. A panic of the future is one of that task.
pub struct PollElsewhere<F: Future> {
    tenant: Arc<str>,
    woken: Arc<Woken>,
    place: Place<F>,
}

/// Where the future is.
enum Place<F: Future> {
    /// Here, until it is woken.
    Here(F),
    /// At the thread that polls it.
    There(Computing<(F, Poll<F::Output>)>),
    Ended,
}

/// Whether the future was woken since its last poll began.
#[derive(Debug)]
struct Woken {
    is_woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl<F: Future + Send + Unpin + 'static> PollElsewhere<F>
where
    F::Output: Send,
{
    /// The same future of a tenant.
    pub fn new(tenant: &Arc<str>, future: F) -> Self {
        let woken = Woken { is_woken: AtomicBool::new(true), task: AtomicWaker::new() };
        Self { tenant: Arc::clone(tenant), woken: Arc::new(woken), place: Place::Here(future) }
    }

    fn begin_poll(&self, mut future: F) -> Computing<(F, Poll<F::Output>)> {
        let (runtime, waker) = (Handle::try_current(), Waker::from(Arc::clone(&self.woken)));
        compute(&self.tenant, move || {
            let _within = runtime.as_ref().map(Handle::enter);
            let polled = Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
            (future, polled)
        })
    }
}

impl<F: Future + Send + Unpin + 'static> Future for PollElsewhere<F>
where
    F::Output: Send,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.woken.task.register(context.waker());
        loop {
            self.place = match std::mem::replace(&mut self.place, Place::Ended) {
                Place::Here(future) => {
                    if !self.woken.is_woken.swap(false, Ordering::AcqRel) {
                        self.place = Place::Here(future);
                        return Poll::Pending;
                    }
                    Place::There(self.begin_poll(future))
                }
                Place::There(mut polling) => {
                    let Poll::Ready((future, polled)) = Pin::new(&mut polling).poll(context) else {
                        self.place = Place::There(polling);
                        return Poll::Pending;
                    };
                    if polled.is_ready() {
                        return polled;
                    }
                    Place::Here(future)
                }
                Place::Ended => unreachable!("an ended future is not polled"),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::thread;
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;

    type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

    fn elsewhere<T: Send + 'static>(
        future: impl Future<Output = T> + Send + 'static,
    ) -> PollElsewhere<Boxed<T>> {
        PollElsewhere::new(&"a".into(), Box::pin(future))
    }

    #[tokio::test]
    async fn another_thread_polls_the_future_within_the_runtime_of_the_task() {
        let here = thread::current().id();
        let places = elsewhere(async move {
            let first = thread::current().id();
            // Needs the runtime.
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::spawn(async {}).await.unwrap();
            [first, thread::current().id()]
        });
        assert!(places.await.iter().all(|there| *there != here));
    }

    #[tokio::test]
    async fn no_wake_up_is_lost() {
        let (sender, mut received) = mpsc::channel(1);
        let sum = tokio::spawn(elsewhere(async move {
            let mut sum = 0;
            while let Some(number) = received.recv().await {
                sum += number;
            }
            sum
        }));
        for number in 0..1_000 {
            sender.send(number).await.unwrap();
            if number % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        drop(sender);
        assert_eq!(sum.await.unwrap(), 499_500);
    }

    #[tokio::test]
    async fn a_future_is_polled_only_when_it_was_woken() {
        let polls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        let mut never = pin!(elsewhere(poll_fn(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Poll::<()>::Pending
        })));
        for _ in 0..100 {
            let polled = poll_fn(|context| Poll::Ready(never.as_mut().poll(context).is_pending()));
            assert!(polled.await);
            crate::compute(&"a".into(), || {}).await;
        }
        assert_eq!(polls.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_panic_is_one_of_the_task() {
        let failed =
            tokio::spawn(elsewhere(async { assert!(thread::panicking(), "of a test") })).await;
        assert!(failed.is_err_and(|error| error.is_panic()));
    }
}
