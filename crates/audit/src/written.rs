//! The wait of a call until its record is written.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::queue::Queue;
use crate::waiters::Held;

/// Resolves when the batch with this number is written, or at a time.
pub(crate) struct Written<'a> {
    queue: &'a Queue,
    batch: u64,
    until: Option<Instant>,
    /// The waker that the queue has.
    registered: Option<Waker>,
}

impl<'a> Written<'a> {
    /// Waits for this batch. Without a time, as long as the queue holds calls.
    pub(crate) fn new(queue: &'a Queue, batch: u64, until: Option<Instant>) -> Self {
        Self { queue, batch, until, registered: None }
    }
}

impl Future for Written<'_> {
    type Output = Result<(), Held>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.queue.has_written(self.batch) {
            return Poll::Ready(Ok(()));
        }
        let until = match self.until {
            Some(until) if Instant::now() >= until => return Poll::Ready(Err(Held)),
            Some(until) => until,
            None => Instant::now() + self.queue.hold(),
        };
        self.until = Some(until);
        if self.registered.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            return Poll::Pending;
        }
        let waker = context.waker().clone();
        if self.queue.wait_for(self.batch, until, waker.clone()) {
            self.registered = Some(waker);
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }
}
