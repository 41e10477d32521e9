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

/// The runs without a byte read or written, and without a request that begins or ends, before a pause. A connection
/// that is served has one or two between bytes.
const RUNS: u32 = 16;

/// How long a pause is. What such a connection waits for is noticed so much later.
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
        this.runs = if steps == this.steps { this.runs + 1 } else { 0 };
        this.steps = steps;
        if this.runs == RUNS && served.is_pending() {
            this.runs = 0;
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

    use tokio::time::timeout;

    use super::*;

    /// The runs of a connection in 100 ms that wakes its task in each of them.
    async fn runs(reads: bool) -> u32 {
        let (heads, runs) = (HeadProgress::new(), Rc::new(Cell::new(0)));
        let (of_connection, counted) = (Rc::clone(&heads), Rc::clone(&runs));
        let connection = poll_fn(move |context| {
            counted.set(counted.get() + 1);
            if reads {
                of_connection.note_step();
            }
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(timeout(PAUSE * 100, Paced::new(connection, heads)).await.is_err());
        runs.get()
    }

    #[tokio::test]
    async fn a_connection_that_only_wakes_itself_runs_a_few_times_each_millisecond() {
        let few = runs(false).await;
        assert!((RUNS..=RUNS * 110).contains(&few), "{few} runs");
        let many = runs(true).await;
        assert!(many > RUNS * 110, "{many} runs");
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
        let served = Paced::new(connection, heads);
        let ((), ()) = tokio::join!(served, async {
            sleep(Duration::from_secs(1)).await;
            answer.set(true);
        });
    }
}
