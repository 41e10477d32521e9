//! The write barrier: answers and entries that wait until the store has acknowledged a change.
//!
//! A change of the session must survive its owner once the client knows that it was accepted. An
//! answer that acknowledges a change therefore waits here, and so do log entries whose state is
//! not saved.

use bytes::Bytes;
use protocol::{Message, Response};
use thin_vec::ThinVec;

use crate::earliest::Earliest;
use crate::step_context::StepContext;
use crate::{Answer, Limits, Millis, Refusal, SinkId};

/// Most answers that wait. A further one becomes "busy": its change was made, and making it again
/// does no harm.
const ANSWERS_MAX: usize = 256;

/// A position in the store: every entry of the log up to a number, and a version of the state.
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
    /// The log holds every entry up to this number.
    acknowledged: u64,
    /// Entries, each with the version of the state that the record must hold before the entry is
    /// sent. The entry and those after it wait. Bounded by the requests in flight.
    entries: ThinVec<(u64, u64)>,
}

/// An answer that waits.
struct WaitingAnswer {
    sink: SinkId,
    answer: Answer,
    needed: StorePosition,
    /// When it is refused unless the store has acknowledged its change.
    until: Millis,
}

impl WriteBarrier {
    /// Does no answer wait?
    pub(crate) fn has_no_answers(&self) -> bool {
        self.answers.is_empty()
    }

    /// The bytes of the answers that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.answers.iter().map(|waiting| waiting.answer.bytes()).sum()
    }

    /// Holds this entry back until the record holds the present state.
    pub(crate) fn hold_back(&mut self, entry: u64, version: u64) {
        self.entries.push((entry, version));
    }

    /// Does an entry wait for the record?
    pub(crate) fn holds_back(&self, entry: u64) -> bool {
        self.entries.iter().any(|(held, _)| *held == entry)
    }

    /// How far the log may be sent, given what the store holds.
    pub(crate) fn sendable_through(&mut self, held: StorePosition) -> u64 {
        self.acknowledged = held.entry.max(self.acknowledged);
        self.entries.retain(|(_, version)| *version > held.version);
        self.entries.iter().map(|(entry, _)| entry - 1).fold(self.acknowledged, u64::min)
    }

    /// Answers once the store holds the change. A duplex session has no store.
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

    /// Sends the answers whose changes the store holds.
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

    /// Answers those that have waited for the store for too long with an error. Their changes
    /// were made, may be lost with this owner, and can be made again without harm.
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

    /// Answers all with an error, because the session accepts no request any more. Their changes
    /// are not in the store; if the end of the session is lost too, they were not made.
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
            earliest.add_deadline(waiting.until);
        }
    }
}

/// The answer instead of one that would promise a stored change.
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

/// The error text for a change that the store did not acknowledge in time.
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
