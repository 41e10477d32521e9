//! How a session leaves its owner and lives on: handed over, or asleep.
//!
//! Either way it finishes what is in flight, waits until everything is held, and only
//! then lets go, so that the next owner reads all of it.

use protocol::Response;

use crate::session::{Phase, Session, StepContext};
use crate::stream::Attachment;
use crate::{Cause, Effect, Ending};

/// Why a session is about to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Another owner is to have it, once nothing is in flight.
    Moving,
    /// Likewise, and nothing in flight is waited for.
    AtOnce,
    /// Nothing happened in it for a while. Whatever happens keeps it.
    FallingAsleep,
}

impl Session {
    /// The node is to give the session up.
    pub(crate) fn hand_over(&mut self, context: &mut StepContext<'_>, at_once: bool) {
        let can_move = self.is_initialized() || (self.phase == Phase::Initializing && !at_once);
        if self.duplex.is_some() || !can_move {
            self.end(context, Cause::Stopping);
        } else if at_once || self.leaving == Some(Leaving::AtOnce) {
            self.leaving = Some(Leaving::AtOnce);
        } else {
            self.leaving = Some(Leaving::Moving);
        }
    }

    /// Something happened: the session does not fall asleep.
    pub(crate) fn stay_awake(&mut self) {
        if self.leaving == Some(Leaving::FallingAsleep) {
            self.leaving = None;
        }
    }

    /// Is it too late for new work here?
    pub(crate) fn takes_nothing(&self) -> bool {
        self.leaving == Some(Leaving::AtOnce)
    }

    /// Brings to an end what would keep the session here.
    pub(crate) fn prepare_to_leave(&mut self, context: &mut StepContext<'_>) {
        let Some(leaving) = self.leaving.filter(|_| self.is_initialized()) else { return };
        if leaving == Leaving::AtOnce {
            // Before the final responses to what asked.
            self.drop_asks(context, "the node stopped");
            let text =
                "the node stopped before the server answered; whether it was done is not known";
            let error = |id| Response::error(Some(id), crate::REFUSED, text, None);
            self.fail_parked(context, &error);
            for exchange in std::mem::take(&mut self.exchanges) {
                let error = error(exchange.id.clone());
                self.settle_taken(context, exchange, error.raw().clone(), false);
            }
            // What the server would still say could never be done.
            self.link.close(context);
        }
        if self.has_no_work() {
            self.drop_asks(context, "the node stopped");
        }
    }

    /// Leaves, if nothing keeps the session here any more.
    pub(crate) fn leave(&mut self, context: &mut StepContext<'_>) {
        let Some(leaving) = self.leaving.filter(|_| self.is_initialized()) else { return };
        let has_no_work = self.has_no_work() || mutant!("leave_with_work_in_hand");
        if !has_no_work || !self.is_held() || !self.gated.is_empty() {
            return;
        }
        for Attachment { sink, open, .. } in std::mem::take(&mut self.attachments) {
            if !open {
                context.effects.push(Effect::Open { sink, welcome: false, at: None });
            }
            context.effects.push(Effect::Finish { sink, ending: Ending::Moved });
        }
        self.link.close(context);
        self.phase = Phase::Over;
        let asleep = leaving == Leaving::FallingAsleep;
        let cause = if asleep { Cause::Asleep } else { Cause::Moved };
        context.effects.push(Effect::Over { cause });
    }

    pub(crate) fn has_no_work(&self) -> bool {
        self.exchanges.is_empty() && self.calls.is_empty() && !self.mirroring.has_parked()
    }
}
