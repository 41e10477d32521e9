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

/// Final responses in the log that wait for the record: they and what follows are told when
/// that holds the state, too. Bounded by the requests in flight.
#[derive(Default)]
pub(crate) struct HeldBack {
    /// The log holds everything up to this number.
    through: u64,
    /// Entries, each with the version that must be held before it is told.
    words: ThinVec<(u64, u64)>,
}

impl HeldBack {
    /// Does an entry wait for the record?
    pub(crate) fn waits_for_record(&self, number: u64) -> bool {
        self.words.iter().any(|(held, _)| *held == number)
    }
}

impl Session {
    /// The newest entry is told only when the record holds the state as it is.
    pub(crate) fn hold_back(&mut self) {
        let version = self.version();
        if version > self.versions.held {
            self.held_back.words.push((self.log.next() - 1, version));
        }
    }

    /// How far the log may be told, now that it holds everything up to `through`.
    pub(crate) fn may_tell(&mut self, through: u64) -> u64 {
        let HeldBack { through: held, words } = &mut self.held_back;
        *held = through.max(*held);
        words.retain(|(_, version)| *version > self.versions.held);
        words.iter().map(|(number, _)| number - 1).fold(*held, u64::min)
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
        words: &str,
        is_late: impl Fn(&Gated) -> bool,
    ) {
        for gated in std::mem::take(&mut self.gated) {
            if is_late(&gated) {
                let Gated { sink, answer, .. } = gated;
                let answer = if mutant!("promise_when_the_wait_is_over") {
                    answer
                } else {
                    refused(answer, words, Refusal::Unavailable)
                };
                context.effects.push(Effect::Answer { sink, answer });
            } else {
                self.gated.push(gated);
            }
        }
    }

    /// Answers all, because nothing will be asked of this session any more. None is told
    /// that it was done: it is not held, and where the end is lost, too, it was not.
    pub(crate) fn open_gate(&mut self, context: &mut StepContext<'_>, words: &str) {
        for Gated { sink, answer, .. } in std::mem::take(&mut self.gated) {
            let answer = refused(answer, words, Refusal::UnknownSession);
            context.effects.push(Effect::Answer { sink, answer });
        }
    }
}

/// What is answered instead of what would promise that something is held.
fn refused(answer: Answer, words: &str, refusal: Refusal) -> Answer {
    match answer {
        Answer::Json(data) => Answer::Json(undone(data, words)),
        Answer::Array(all) => {
            Answer::Array(all.into_iter().map(|data| undone(data, words)).collect())
        }
        Answer::Accepted => Answer::Refused(refusal),
        other => other,
    }
}

/// The error instead of a result.
pub(crate) fn undone(data: Bytes, words: &str) -> Bytes {
    match Message::parse(data.clone()) {
        Ok(Message::Response(response)) if response.outcome().is_ok() => {
            Response::error(response.id, crate::REFUSED, words, None).raw().clone()
        }
        _ => data,
    }
}
