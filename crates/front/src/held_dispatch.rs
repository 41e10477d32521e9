//! A message that is sent to its session when its audit record is written.
//!
//! The task that writes the records of a tick also sends their messages: the connection of the request is
//! polled again only when there is a reply, as without an audit log. A client that leaves before its
//! record is written has sent nothing. Connection and task are of one thread, so nothing here is locked.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use actors::ReplyStream;
use audit::{Held, Recorder, Ticket};
use telemetry::{SpanRef, current_span, enter_span};

use crate::audited::Audited;

thread_local! {
    /// The messages of this thread whose records are not written. While there are some of a recorder, its task
    /// (`perform_records`) is woken, or looks at them at an interval.
    static HELD: RefCell<Vec<(Ticket, Rc<dyn WaitsForRecord>)>> = const { RefCell::new(Vec::new()) };
}

/// Sends the messages whose records this recorder has written, and refuses those whose time is over. Returns whether
/// some of the recorder still wait.
pub(crate) fn go_on(recorder: &Recorder) -> bool {
    let mut all = HELD.take();
    if all.is_empty() {
        return false;
    }
    let mut now = None;
    all.retain(|(ticket, held)| {
        let outcome = recorder.outcome(*ticket, || *now.get_or_insert_with(Instant::now));
        let still_waits = outcome.is_none();
        outcome.into_iter().for_each(|outcome| held.go_on(outcome));
        still_waits
    });
    HELD.with_borrow_mut(|new| {
        all.append(new);
        *new = all;
        new.iter().any(|(ticket, _)| recorder.has_made(*ticket))
    })
}

trait WaitsForRecord {
    /// The record is written, or it was not in time.
    fn go_on(&self, result: Result<(), Held>);
}

/// Resolves to the reply, at the earliest when the message is sent.
pub(crate) struct HeldDispatch<'a, F> {
    held: Rc<HeldMessage<F>>,
    audited: &'a mut Audited,
}

/// What the connection and the task that writes records share.
struct HeldMessage<F> {
    /// Sends the message; `None` once it is sent, or is not to be sent any more.
    send: Cell<Option<F>>,
    state: RefCell<State>,
    span: Option<SpanRef>,
}

enum State {
    /// The record is not written.
    Waiting(Option<Waker>),
    /// The message is sent.
    Sent(ReplyStream),
    /// The record was not written in time.
    Refused,
    /// The connection has the reply, or is gone.
    Over,
}

impl<'a, F: FnOnce() -> ReplyStream + 'static> HeldDispatch<'a, F> {
    /// Sends a message when this record is written, and at once if there is nothing to wait for.
    pub(crate) fn new(audited: &'a mut Audited, ticket: Ticket, send: F) -> Self {
        let held = Rc::new(HeldMessage {
            send: Cell::new(Some(send)),
            state: RefCell::new(State::Waiting(None)),
            span: current_span(),
        });
        let recorder = audited.recorder();
        if recorder.is_written(ticket) {
            held.go_on(Ok(()));
        } else {
            let waits = Rc::clone(&held) as Rc<dyn WaitsForRecord>;
            let is_first = HELD.with_borrow_mut(|all| {
                let is_first = !all.iter().any(|(other, _)| recorder.has_made(*other));
                all.push((ticket, waits));
                is_first
            });
            if is_first {
                recorder.look_soon();
            }
        }
        Self { held, audited }
    }
}

impl<F: FnOnce() -> ReplyStream> WaitsForRecord for HeldMessage<F> {
    fn go_on(&self, result: Result<(), Held>) {
        // Otherwise the client left.
        let Some(send) = self.send.take() else { return };
        let State::Waiting(waker) = self.state.replace(State::Refused) else { return };
        let sent = result.ok().and_then(|()| {
            let _entered = enter_span(self.span);
            let send = || {
                let mut replies = send();
                let poll = |waker| replies.poll_ready(&mut Context::from_waker(waker)).is_ready();
                let is_ready = waker.as_ref().is_some_and(poll);
                (replies, is_ready)
            };
            // A panic is the end of this request, and not of the task, which sends those of others.
            panic::catch_unwind(AssertUnwindSafe(send)).ok()
        });
        let is_over = match sent {
            Some((replies, is_ready)) => {
                self.state.replace(State::Sent(replies));
                is_ready
            }
            None => true,
        };
        if is_over {
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

impl<F> Future for HeldDispatch<'_, F> {
    type Output = Result<ReplyStream, Held>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { held, audited } = self.get_mut();
        let mut state = held.state.borrow_mut();
        if let State::Waiting(waker) = &mut *state {
            match waker {
                Some(known) => known.clone_from(context.waker()),
                None => *waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Over) {
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
        self.held.send.take();
        if let State::Sent(_) = self.held.state.replace(State::Over) {
            self.audited.set_dispatched();
        }
    }
}
