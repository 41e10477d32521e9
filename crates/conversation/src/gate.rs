//! Answers that are held back until what they stand for is held: what changes a session
//! survives its owner once the client knows that it was taken.

use bytes::Bytes;
use protocol::{Message, Response};
use thin_vec::ThinVec;

use crate::session::{Session, StepContext};
use crate::{Answer, Effect, Millis, Refusal, SinkId};

/// Most answers held back. A further one becomes "busy": what it is about was done, and
/// doing it again does no harm.
const GATED_MAX: usize = 256;

/// An answer that waits.
pub(crate) struct Gated {
    pub(crate) sink: SinkId,
    /// When it is refused if the store has not acknowledged it by then.
    pub(crate) until: Millis,
    answer: Answer,
    /// The log must hold everything up to this number.
    through: u64,
    /// The record must hold this version of the state.
    version: u64,
}

/// Final responses in the log that wait for the record: they and what follows are sent when
/// that holds the state, too. Bounded by the requests in flight.
#[derive(Default)]
pub(crate) struct HeldBack {
    /// The log holds everything up to this number.
    through: u64,
    /// Entries, each with the version that must be held before it is sent.
    final_responses: ThinVec<(u64, u64)>,
}

impl HeldBack {
    /// Does an entry wait for the record?
    pub(crate) fn waits_for_record(&self, number: u64) -> bool {
        self.final_responses.iter().any(|(held, _)| *held == number)
    }
}

impl Session {
    /// The newest entry is sent only when the record holds the state as it is.
    pub(crate) fn hold_back(&mut self) {
        let version = self.version();
        if version > self.versions.held {
            self.held_back.final_responses.push((self.log.next() - 1, version));
        }
    }

    /// How far the log may be sent, now that it holds everything up to `through`.
    pub(crate) fn may_tell(&mut self, through: u64) -> u64 {
        let HeldBack { through: held, final_responses } = &mut self.held_back;
        *held = through.max(*held);
        final_responses.retain(|(_, version)| *version > self.versions.held);
        final_responses.iter().map(|(number, _)| number - 1).fold(*held, u64::min)
    }

    /// Answers once the log holds everything up to `through`, and the record the state as it is.
    pub(crate) fn answer_when_held(
        &mut self,
        context: &mut StepContext<'_>,
        sink: SinkId,
        answer: Answer,
        through: u64,
    ) {
        let until = context.now.plus(self.limits.hold_ms);
        let gated = Gated { sink, until, answer, through, version: self.version() };
        if self.duplex.is_some() || self.is_through(&gated) {
            let Gated { sink, answer, .. } = gated;
            context.effects.push(Effect::Answer { sink, answer });
        } else if self.gated.len() >= GATED_MAX {
            context.effects.push(Effect::Answer { sink, answer: Answer::Refused(Refusal::Busy) });
        } else {
            self.gated.push(gated);
        }
    }

    fn is_through(&self, gated: &Gated) -> bool {
        (gated.through <= self.log.acknowledged() && gated.version <= self.versions.held)
            || mutant!("open_the_gate_early")
    }

    /// Gives the answers whose time has come.
    pub(crate) fn let_through(&mut self, context: &mut StepContext<'_>) {
        if self.gated.is_empty() || mutant!("never_open_the_gate") {
            return;
        }
        for gated in std::mem::take(&mut self.gated) {
            if self.is_through(&gated) {
                let Gated { sink, answer, .. } = gated;
                context.effects.push(Effect::Answer { sink, answer });
            } else {
                self.gated.push(gated);
            }
        }
    }

    /// Answers those that have waited for the store for too long. What they are about was
    /// done, may be lost with this owner, and does no harm when it is done again.
    pub(crate) fn refuse_gated(
        &mut self,
        context: &mut StepContext<'_>,
        text: &str,
        is_late: impl Fn(&Gated) -> bool,
    ) {
        for gated in std::mem::take(&mut self.gated) {
            if is_late(&gated) {
                let Gated { sink, answer, .. } = gated;
                let answer = if mutant!("promise_when_the_wait_is_over") {
                    answer
                } else {
                    refused(answer, text, Refusal::Unavailable)
                };
                context.effects.push(Effect::Answer { sink, answer });
            } else {
                self.gated.push(gated);
            }
        }
    }

    /// Answers all, because the session takes no request any more. None is answered as done: the
    /// change is not in the store, and where the end of the session is lost, too, it was not made.
    pub(crate) fn open_gate(&mut self, context: &mut StepContext<'_>, text: &str) {
        for Gated { sink, answer, .. } in std::mem::take(&mut self.gated) {
            let answer = refused(answer, text, Refusal::UnknownSession);
            context.effects.push(Effect::Answer { sink, answer });
        }
    }
}

/// What is answered instead of what would promise that something is held.
fn refused(answer: Answer, text: &str, refusal: Refusal) -> Answer {
    match answer {
        Answer::Json(data) => Answer::Json(undone(data, text)),
        Answer::Array(all) => {
            Answer::Array(all.into_iter().map(|data| undone(data, text)).collect())
        }
        Answer::Accepted => Answer::Refused(refusal),
        other => other,
    }
}

/// The error instead of a result.
pub(crate) fn undone(data: Bytes, text: &str) -> Bytes {
    match Message::parse(data.clone()) {
        Ok(Message::Response(response)) if response.outcome().is_ok() => {
            Response::error(response.id, crate::REFUSED, text, None).raw().clone()
        }
        _ => data,
    }
}
