//! Giving the session up: because the node leaves, or because nothing happens in it.
//!
//! Everything is in the log and the record before the session leaves, so whoever takes it
//! up goes on where this owner stopped.

use protocol::Response;

use crate::session::{Phase, Session, Turn};
use crate::stream::Attachment;
use crate::{Cause, Effect, Ending};

/// How the session is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaving {
    cause: Cause,
}

impl Session {
    /// The node wants to give the session up: when nothing is in flight any more, or now.
    pub(crate) fn hand_over(&mut self, turn: &mut Turn<'_>, at_once: bool) {
        let unborn = self.phase < Phase::Answered;
        if self.duplex.is_some() || unborn {
            // It lives with its connection, or is nobody's yet.
            if at_once || self.exchanges.is_empty() {
                self.end(turn, Cause::Stopping);
            }
            return;
        }
        self.leaving = Some(Leaving { cause: Cause::Moved });
        if at_once {
            self.settle_all(turn);
        }
    }

    /// Every request in flight gets an error as its last word, in the log where its stream is.
    fn settle_all(&mut self, turn: &mut Turn<'_>) {
        let words = "the node is stopping before this was done; try again";
        let error = |id| Response::error(Some(id), crate::REFUSED, words, None);
        self.fail_parked(turn, &error);
        for exchange in std::mem::take(&mut self.exchanges) {
            let error = error(exchange.id.clone());
            self.settle_taken(turn, exchange, error.raw().clone(), false);
        }
    }

    /// Nothing has happened for long: the session may leave memory.
    pub(crate) fn fall_asleep(&mut self) {
        if self.leaving.is_none() {
            self.leaving = Some(Leaving { cause: Cause::Asleep });
        }
    }

    /// Leaves, once nothing is in flight and everything is held.
    pub(crate) fn hand_over_if_done(&mut self, turn: &mut Turn<'_>) {
        let Some(Leaving { cause }) = self.leaving else { return };
        if cause == Cause::Asleep && !self.is_quiet() {
            self.leaving = None;
            return;
        }
        let settled = self.exchanges.is_empty()
            && self.mirroring.is_empty()
            && self.calls.is_empty()
            && self.gated.is_empty();
        let held = self.log.is_held() && self.is_saved(self.version());
        if self.is_over() || !settled || !held {
            return;
        }
        for Attachment { sink, open, .. } in std::mem::take(&mut self.attachments) {
            if !open {
                turn.effects.push(Effect::Open { sink, welcome: false, at: None });
            }
            turn.effects.push(Effect::Finish { sink, ending: Ending::Moved });
        }
        self.link.close(turn);
        self.phase = Phase::Over;
        turn.effects.push(Effect::Over { cause });
    }

    /// Does nothing happen, and would nothing be missed?
    pub(crate) fn is_quiet(&self) -> bool {
        self.exchanges.is_empty()
            && self.calls.is_empty()
            && self.attachments.is_empty()
            && self.gated.is_empty()
            && self.waiting.is_empty()
            && self.mirroring.is_empty()
    }
}
