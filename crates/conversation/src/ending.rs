//! The answer to a DELETE: given once the store has acknowledged the end of the session.
//!
//! An end that is answered before it is written is lost with its owner, and the session,
//! which may be a stolen one, can be used again.

use thin_vec::ThinVec;

use crate::session::{Session, StepContext};
use crate::{Answer, Effect, Refusal, SinkId};

/// Most DELETEs that wait for one end; a further one is refused as [`Refusal::Busy`].
const DELETES_MAX: usize = 64;

/// How far the end of a session has come in the store.
pub(crate) enum EndState {
    /// Not written yet, or not begun. DELETEs wait here.
    Pending(ThinVec<SinkId>),
    /// The store holds it.
    Durable,
    /// The store did not acknowledge it in time. The caller goes on trying.
    Unknown,
}

impl Default for EndState {
    fn default() -> Self {
        Self::Pending(ThinVec::new())
    }
}

impl Session {
    /// Answers a DELETE, now or as soon as the store has acknowledged the end.
    pub(crate) fn answer_when_ended(&mut self, context: &mut StepContext<'_>, sink: SinkId) {
        if mutant!("answer_a_delete_at_once") {
            return context.effects.push(Effect::Answer { sink, answer: Answer::Ended });
        }
        let refusal = match &mut self.end_state {
            EndState::Pending(deletes) if deletes.len() < DELETES_MAX => {
                deletes.push(sink);
                return;
            }
            EndState::Pending(_) => Refusal::Busy,
            EndState::Durable => Refusal::UnknownSession,
            EndState::Unknown => Refusal::Unavailable,
        };
        context.effects.push(Effect::Answer { sink, answer: Answer::Refused(refusal) });
    }

    /// The store holds the end of the session (`durable`), or has not acknowledged it in
    /// time: answers all DELETEs that wait.
    pub(crate) fn ended(&mut self, context: &mut StepContext<'_>, durable: bool) {
        let (state, answer) = if durable || mutant!("an_unknown_end_is_an_end") {
            (EndState::Durable, Answer::Ended)
        } else {
            (EndState::Unknown, Answer::Refused(Refusal::Unavailable))
        };
        let EndState::Pending(deletes) = std::mem::replace(&mut self.end_state, state) else {
            return;
        };
        for sink in deletes {
            context.effects.push(Effect::Answer { sink, answer: answer.clone() });
        }
    }

    /// Does this connection wait until the end of the session is written?
    pub fn awaits_end(&self, sink: SinkId) -> bool {
        matches!(&self.end_state, EndState::Pending(deletes) if deletes.contains(&sink))
    }
}
