//! A message that is sent to its session when its audit record is written.
//!
//! The task that writes the records of a tick also sends their messages: the connection of the request is
//! polled again only when there is a reply, as without an audit log. A client that leaves before its
//! record is written has sent nothing.

use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use actors::ReplyStream;
use audit::{Held, Ticket, WaitsForRecord};
use telemetry::{SpanRef, current_span, enter_span};

use crate::audited::Audited;

/// Resolves to the reply, at the earliest when the message is sent.
pub(crate) struct HeldDispatch<'a, F> {
    shared: Arc<Shared<F>>,
    audited: &'a mut Audited,
}

/// What the connection and the task that writes records share. Both are of one thread.
struct Shared<F> {
    state: Mutex<State<F>>,
    span: Option<SpanRef>,
}

enum State<F> {
    /// The record is not written.
    Waiting { send: F, waker: Option<Waker> },
    /// The message is sent.
    Sent(ReplyStream),
    /// The record was not written in time.
    Refused,
    /// The connection has the reply, or is gone.
    Over,
}

impl<'a, F> HeldDispatch<'a, F>
where
    F: FnOnce() -> ReplyStream + Send + 'static,
{
    /// Sends a message when this record is written, and at once if there is nothing to wait for.
    pub(crate) fn new(audited: &'a mut Audited, ticket: Ticket, send: F) -> Self {
        let state = Mutex::new(State::Waiting { send, waker: None });
        let shared = Arc::new(Shared { state, span: current_span() });
        let waits = Arc::clone(&shared) as Arc<dyn WaitsForRecord>;
        if !audited.recorder().when_written(ticket, waits) {
            shared.go_on(Ok(()));
        }
        Self { shared, audited }
    }
}

impl<F> Shared<F> {
    /// No code panics under this lock but that of the message, which is not sent again.
    fn state(&self) -> MutexGuard<'_, State<F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: FnOnce() -> ReplyStream + Send> WaitsForRecord for Shared<F> {
    fn go_on(&self, result: Result<(), Held>) {
        let mut state = self.state();
        *state = match (mem::replace(&mut *state, State::Over), result) {
            (State::Waiting { send, waker }, Ok(())) => {
                let _entered = enter_span(self.span);
                // A panic is the end of this request, and not of the task, which sends those of others.
                match panic::catch_unwind(AssertUnwindSafe(send)) {
                    Ok(mut replies) => {
                        if let Some(waker) = waker
                            && replies.poll_ready(&mut Context::from_waker(&waker)).is_ready()
                        {
                            waker.wake();
                        }
                        State::Sent(replies)
                    }
                    Err(_) => {
                        waker.into_iter().for_each(Waker::wake);
                        State::Refused
                    }
                }
            }
            (State::Waiting { waker, .. }, Err(Held)) => {
                waker.into_iter().for_each(Waker::wake);
                State::Refused
            }
            (state, _) => state,
        };
    }
}

impl<F> Future for HeldDispatch<'_, F> {
    type Output = Result<ReplyStream, Held>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shared, audited } = self.get_mut();
        let mut state = shared.state();
        let ended = match &mut *state {
            // In its place: the message is several hundred bytes long.
            State::Waiting { waker, .. } => {
                match waker {
                    Some(known) => known.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                return Poll::Pending;
            }
            ended => mem::replace(ended, State::Over),
        };
        match ended {
            State::Sent(replies) => {
                audited.set_dispatched();
                Poll::Ready(Ok(replies))
            }
            _ => {
                audited.hold_back();
                Poll::Ready(Err(Held))
            }
        }
    }
}

/// The client left, or the reply was taken.
impl<F> Drop for HeldDispatch<'_, F> {
    fn drop(&mut self) {
        let state = mem::replace(&mut *self.shared.state(), State::Over);
        if let State::Sent(_) = state {
            self.audited.set_dispatched();
        }
    }
}
