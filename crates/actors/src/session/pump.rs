//! Polls the inputs of a session beside its mailbox: log writer, timer, link.
//!
//! All three are fields of the actor, so a replaced or dropped one wakes no task, and a busy
//! session creates no futures.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix::{ActorFuture, AsyncContext};

use super::actor::SessionActor;

/// The most events of one poll; then other sessions of the thread run.
const EVENTS_MAX: usize = 16;

/// The future that polls until the session is over.
pub(super) struct Pump;

impl ActorFuture<SessionActor> for Pump {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        actor: &mut SessionActor,
        context: &mut actix::Context<SessionActor>,
        task: &mut Context<'_>,
    ) -> Poll<()> {
        for _ in 0..EVENTS_MAX {
            // While the record is being created, no other event is handled; the session is polled
            // again afterwards.
            if actor.life.is_over() || context.waiting() {
                return Poll::Pending;
            }
            let mut idle = false;
            actor.run_guarded(context, |actor| match actor.poll_event(task) {
                Poll::Ready(event) => actor.handle_event(event),
                Poll::Pending => idle = true,
            });
            if idle {
                return Poll::Pending;
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}
