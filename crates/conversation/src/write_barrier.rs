//! The write barrier: what waits until the store has acknowledged what it stands for.
//!
//! A change of the session survives its owner once the client knows that it was taken. So
//! an answer that acknowledges one waits here, and so do log entries whose state is not saved.

use bytes::Bytes;
use protocol::{Message, Response};
use thin_vec::ThinVec;

use crate::earliest::Earliest;
use crate::step_context::StepContext;
use crate::{Answer, Limits, Millis, Refusal, SinkId};

/// Most answers that wait. A further one becomes "busy": what it is about was done, and
/// doing it again does no harm.
const ANSWERS_MAX: usize = 256;

/// What the store must hold, or holds: all entries of the log up to a number, and a version of
/// the state.
#[derive(Clone, Copy)]
pub(crate) struct StorePosition {
    pub(crate) entry: u64,
    pub(crate) version: u64,
}

impl StorePosition {
    fn includes(self, needed: Self) -> bool {
        (needed.entry <= self.entry && needed.version <= self.version)
            || mutant!("open_the_gate_early")
    }
}

/// The answers and the entries that wait for the store.
#[derive(Default)]
pub(crate) struct WriteBarrier {
    answers: ThinVec<WaitingAnswer>,
    /// The log holds everything up to this number.
    acknowledged: u64,
    /// Entries, each with the version of the state that the record must hold before it is
    /// sent: it and what follows wait. Bounded by the requests in flight.
    entries: ThinVec<(u64, u64)>,
}

/// An answer that waits.
struct WaitingAnswer {
    sink: SinkId,
    answer: Answer,
    needed: StorePosition,
    /// When it is refused if the store has not acknowledged it by then.
    until: Millis,
}

impl WriteBarrier {
    /// Does no answer wait?
    pub(crate) fn has_no_answers(&self) -> bool {
        self.answers.is_empty()
    }

    /// An entry is sent only when the record holds the state as it is.
    pub(crate) fn hold_back(&mut self, entry: u64, version: u64) {
        self.entries.push((entry, version));
    }

    /// Does an entry wait for the record?
    pub(crate) fn holds_back(&self, entry: u64) -> bool {
        self.entries.iter().any(|(held, _)| *held == entry)
    }

    /// How far the log may be sent, now that the store holds so much.
    pub(crate) fn sendable_through(&mut self, held: StorePosition) -> u64 {
        self.acknowledged = held.entry.max(self.acknowledged);
        self.entries.retain(|(_, version)| *version > held.version);
        self.entries.iter().map(|(entry, _)| entry - 1).fold(self.acknowledged, u64::min)
    }

    /// Answers once the store holds what is needed. A duplex session has no store.
    pub(crate) fn answer_when_held(
        &mut self,
        context: &mut StepContext<'_>,
        (sink, answer): (SinkId, Answer),
        needed: StorePosition,
        held: StorePosition,
    ) {
        if context.is_duplex() || held.includes(needed) {
            context.answer_sink(sink, answer);
        } else if self.answers.len() >= ANSWERS_MAX {
            context.refuse_sink(sink, Refusal::Busy);
        } else {
            let until = context.now.plus(context.limits().hold_ms);
            self.answers.push(WaitingAnswer { sink, answer, needed, until });
        }
    }

    /// Gives the answers whose changes the store holds.
    pub(crate) fn release_answers(&mut self, context: &mut StepContext<'_>, held: StorePosition) {
        if self.answers.is_empty() || mutant!("never_open_the_gate") {
            return;
        }
        for waiting in std::mem::take(&mut self.answers) {
            if held.includes(waiting.needed) {
                context.answer_sink(waiting.sink, waiting.answer);
            } else {
                self.answers.push(waiting);
            }
        }
    }

    /// Answers those that have waited for the store for too long. What they are about was
    /// done, may be lost with this owner, and does no harm when it is done again.
    pub(crate) fn refuse_late_answers(&mut self, context: &mut StepContext<'_>, text: &str) {
        for waiting in std::mem::take(&mut self.answers) {
            if waiting.until > context.now {
                self.answers.push(waiting);
                continue;
            }
            let answer = if mutant!("promise_when_the_wait_is_over") {
                waiting.answer
            } else {
                refused(waiting.answer, text, Refusal::Unavailable)
            };
            context.answer_sink(waiting.sink, answer);
        }
    }

    /// Answers all, because the session takes no request any more. None is answered as done: the
    /// change is not in the store, and where the end of the session is lost, too, it was not made.
    pub(crate) fn refuse_all_answers(&mut self, context: &mut StepContext<'_>, text: &str) {
        for WaitingAnswer { sink, answer, .. } in std::mem::take(&mut self.answers) {
            context.answer_sink(sink, refused(answer, text, Refusal::UnknownSession));
        }
    }

    /// A connection is closed, and needs no answer.
    pub(crate) fn disconnect(&mut self, sink: SinkId) {
        self.answers.retain(|waiting| waiting.sink != sink);
    }

    pub(crate) fn note_deadlines(&self, earliest: &mut Earliest) {
        for waiting in &self.answers {
            earliest.note(waiting.until);
        }
    }
}

/// What is answered instead of what would promise that something is held.
fn refused(answer: Answer, text: &str, refusal: Refusal) -> Answer {
    match answer {
        Answer::Json(data) => Answer::Json(error_for_result(data, text)),
        Answer::Array(all) => {
            Answer::Array(all.into_iter().map(|data| error_for_result(data, text)).collect())
        }
        Answer::Accepted => Answer::Refused(refusal),
        other => other,
    }
}

/// The error instead of a result.
pub(crate) fn error_for_result(data: Bytes, text: &str) -> Bytes {
    match Message::parse(data.clone()) {
        Ok(Message::Response(response)) if response.outcome().is_ok() => {
            Response::error(response.id, crate::REFUSED, text, None).raw().clone()
        }
        _ => data,
    }
}

/// The error text for what the store did not acknowledge in time.
pub(crate) fn unacknowledged(limits: &Limits) -> String {
    format!(
        "the session store did not acknowledge this within {} ms (sessions.hold_ms); try again",
        limits.hold_ms
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_sent_up_to_the_first_entry_whose_state_is_not_saved() {
        let mut barrier = WriteBarrier::default();
        barrier.hold_back(3, 2);
        let position = |entry, version| StorePosition { entry, version };
        assert_eq!(barrier.sendable_through(position(5, 1)), 2);
        assert!(barrier.holds_back(3));
        assert_eq!(barrier.sendable_through(position(4, 2)), 5);
        assert!(!barrier.holds_back(3));
    }
}
