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
    There(Computing<(Within<F>, Poll<F::Output>)>),
    Ended,
}

/// A future within the runtime of its task, where it is also dropped: what it drops may start tasks.
struct Within<F> {
    runtime: Option<Handle>,
    future: Option<F>,
}

impl<F: Future + Unpin> Within<F> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<F::Output> {
        let _within = self.runtime.as_ref().map(Handle::enter);
        let future = self.future.as_mut().expect("it is taken after its poll");
        Pin::new(future).poll(context)
    }
}

impl<F> Drop for Within<F> {
    fn drop(&mut self) {
        let _within = self.runtime.as_ref().map(Handle::enter);
        self.future = None;
    }
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

    fn begin_poll(&self, future: F) -> Computing<(Within<F>, Poll<F::Output>)> {
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut future = Within { runtime: Handle::try_current().ok(), future: Some(future) };
        compute(&self.tenant, move || {
            let polled = future.poll(&mut Context::from_waker(&waker));
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
                    let Poll::Ready((mut within, polled)) = Pin::new(&mut polling).poll(context)
                    else {
                        self.place = Place::There(polling);
                        return Poll::Pending;
                    };
                    match within.future.take() {
                        Some(future) if polled.is_pending() => Place::Here(future),
                        _ => return polled,
                    }
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

    /// Starts a task when it is dropped, and panics.
    struct Cleans(mpsc::Sender<()>);

    impl Drop for Cleans {
        fn drop(&mut self) {
            let sender = self.0.clone();
            tokio::spawn(async move { sender.send(()).await });
            panic!("of a test");
        }
    }

    #[tokio::test]
    async fn a_future_that_panics_when_it_is_given_up_has_the_runtime_and_ends_no_thread() {
        let (sender, mut cleaned) = mpsc::channel(1);
        let threads = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..=threads {
            let (begun, has_begun) = tokio::sync::oneshot::channel();
            let (go, goes) = std::sync::mpsc::channel::<()>();
            let cleans = Cleans(sender.clone());
            let mut given_up = elsewhere(async move {
                let _cleans = cleans;
                let _ = begun.send(());
                let _ = goes.recv();
                std::future::pending::<()>().await;
            });
            let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut given_up).poll(context)));
            assert!(polled.await.is_pending());
            has_begun.await.unwrap();
            drop(given_up);
            go.send(()).unwrap();
            tokio::time::timeout(Duration::from_secs(10), cleaned.recv()).await.unwrap();
        }
        let computed = tokio::time::timeout(Duration::from_secs(10), compute(&"a".into(), || 7));
        assert_eq!(computed.await, Ok(7));
    }

    #[tokio::test]
    async fn a_panic_is_one_of_the_task() {
        let failed =
            tokio::spawn(elsewhere(async { assert!(thread::panicking(), "of a test") })).await;
        assert!(failed.is_err_and(|error| error.is_panic()));
    }
}
