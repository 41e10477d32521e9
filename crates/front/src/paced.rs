//! Pauses of a connection that runs again and again, and neither reads nor writes.
//!
//! A client may send requests ahead of the one that is served. When the buffer of the HTTP layer is full of them,
//! it reads no more, and wakes the task of the connection in each run of it, until that one is answered. Without
//! pauses such a connection takes all of a worker's time.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use crate::head_timeout::HeadProgress;

/// After so many runs without a byte read or written, and without a request that begins or ends, a pause follows
/// each further one. A request that is served has about ten: one for each thing that it waits for.
const RUNS: u32 = 64;

/// How long a pause is at least; the timer may add as much again. What such a connection waits for is noticed so
/// much later.
const PAUSE: Duration = Duration::from_millis(1);

/// A connection that pauses.
pub(crate) struct Paced<F> {
    served: F,
    heads: Rc<HeadProgress>,
    /// The number of steps that were seen.
    steps: u32,
    /// The runs since then.
    runs: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<F> Paced<F> {
    /// The future that serves the connection with this state.
    pub(crate) fn new(served: F, heads: Rc<HeadProgress>) -> Self {
        Self { served, heads, steps: 0, runs: 0, pause: None }
    }
}

impl<F: Future + Unpin> Future for Paced<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(context));
            this.pause = None;
        }
        let served = Pin::new(&mut this.served).poll(context);
        let steps = this.heads.steps();
        this.runs = if steps == this.steps { this.runs.saturating_add(1) } else { 0 };
        this.steps = steps;
        if this.runs >= RUNS && served.is_pending() {
            let pause = this.pause.insert(Box::pin(sleep(PAUSE)));
            // A first poll starts the timer. Should the time be over already, the task was not woken for it.
            if pause.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
        served
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;

    use tokio::time::{Instant, timeout};

    use super::*;

    /// The time that so many runs of a connection take that wakes its task in each of them.
    async fn time_of(runs: u32, reads: bool) -> Duration {
        let (heads, began) = (HeadProgress::new(), Instant::now());
        let (of_connection, mut left) = (Rc::clone(&heads), runs);
        let connection = poll_fn(move |context| {
            if reads {
                of_connection.note_step();
            }
            left -= 1;
            if left == 0 {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        });
        Paced::new(connection, heads).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_only_wakes_itself_pauses_after_each_run_and_one_that_reads_does_not()
    {
        assert_eq!(time_of(RUNS - 1, false).await, Duration::ZERO);
        assert!(time_of(RUNS + 100, false).await >= PAUSE * 100);
        assert_eq!(time_of(RUNS * 100, true).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_connection_waits_for_is_noticed_after_a_pause() {
        let (heads, answer) = (HeadProgress::new(), Rc::new(Cell::new(false)));
        let arrives = Rc::clone(&answer);
        let connection = poll_fn(move |context| {
            if arrives.get() {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        });
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let served = timeout(2 * second, Paced::new(connection, heads));
        let (served, ()) = tokio::join!(served, async {
            sleep(second).await;
            answer.set(true);
        });
        assert!(served.is_ok() && began.elapsed() <= second + 2 * PAUSE, "{:?}", began.elapsed());
    }
}
