//! Answers that promise something: given only when what they promise is held.

use crate::session::{Session, Turn};
use crate::{Answer, Effect, Refusal, SinkId};

/// Most answers that wait; beyond them a post is refused as busy, though it was taken.
const GATED_MAX: usize = 256;

/// An answer that waits.
#[derive(Debug)]
pub(crate) struct Gated {
    pub(crate) sink: SinkId,
    answer: Answer,
    /// The entry that the log must hold.
    through: u64,
    /// The version of the state that the record must hold.
    version: u64,
}

impl Session {
    /// Answers when the log holds everything up to `through`, and the record this version.
    pub(crate) fn answer_when_held(
        &mut self,
        turn: &mut Turn<'_>,
        sink: SinkId,
        answer: Answer,
        through: u64,
        version: u64,
    ) {
        let gated = Gated { sink, answer, through, version };
        if self.duplex.is_some() || self.is_held(&gated) {
            turn.effects.push(Effect::Answer { sink, answer: gated.answer });
        } else if self.gated.len() < GATED_MAX {
            self.gated.push(gated);
        } else {
            let answer = Answer::Refused(Refusal::Busy);
            turn.effects.push(Effect::Answer { sink, answer });
        }
    }

    /// Gives the answers whose time has come.
    pub(crate) fn open_gates(&mut self, turn: &mut Turn<'_>) {
        let mut at = 0;
        while at < self.gated.len() {
            if self.is_held(&self.gated[at]) {
                let Gated { sink, answer, .. } = self.gated.remove(at);
                turn.effects.push(Effect::Answer { sink, answer });
            } else {
                at += 1;
            }
        }
    }

    fn is_held(&self, gated: &Gated) -> bool {
        self.log.acknowledged() >= gated.through && self.is_saved(gated.version)
    }
}
