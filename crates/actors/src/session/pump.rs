//! Polls what a session waits for beside its mailbox: its log writer, its one timer, its link.
//!
//! All three are fields of the actor, so one that is replaced or dropped there wakes nothing any
//! more, and a busy session makes no futures.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix::{ActorFuture, AsyncContext};

use super::actor::SessionActor;

/// Most events of one poll; then other sessions of the thread have their turn.
const EVENTS_MAX: usize = 64;

/// Polls until the session is over.
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
            // While the session waits for its record, nothing else happens; it is polled
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
