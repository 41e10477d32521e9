//! What a connection makes of what it is told, and of an owner that is lost: pure decisions.
//!
//! A client's connection outlives the owners of its session. What was certainly not done
//! is asked for again; what may have been done is asked for as such; a stream goes on
//! after the last event that passed.

use std::collections::VecDeque;

use bytes::Bytes;
use conversation::{Answer, EventId, Frame, Refusal};
use protocol::{Body, ErrorCode, Message, RequestId, Response};

use super::Errand;
use crate::Told;

/// The last word on what a lost node may or may not have done.
const LOST: &str = "the node that worked on this was lost; whether it was done is not known";

/// One connection's way through the owners of its session.
pub(super) struct Course {
    /// What is asked of the next owner.
    errand: Errand,
    /// The requests of the POST, each until its last word has passed.
    owed: Vec<RequestId>,
    batch: bool,
    is_listening: bool,
    /// The session was opened with this.
    is_newborn: bool,
    /// The response's head has passed.
    open: bool,
    /// Where the stream is gone on with.
    cursor: Option<EventId>,
    /// The stream began with a cursor, so its client comes back to it.
    primed: bool,
    /// The last message that passed, which may be the last word on the only request.
    last: Option<Bytes>,
}

/// What follows.
#[derive(Debug)]
pub(super) enum Next {
    /// Tell the client this.
    Tell(Told),
    /// Nothing to tell; go on as it was.
    Nothing,
    /// Find out where the session is, and ask there.
    Seek,
    /// As `Seek`, after a wait: whoever was asked has no room.
    Wait,
    /// Tell the client this, and that is all.
    Last(VecDeque<Told>),
}

impl Course {
    pub(super) fn new(errand: Errand) -> Self {
        let batch = matches!(&errand, Errand::Post { body: Body::Batch(_), .. });
        Self {
            owed: errand.requests(),
            batch,
            is_listening: matches!(errand, Errand::Listen { .. }),
            is_newborn: false,
            errand,
            open: false,
            cursor: None,
            primed: false,
            last: None,
        }
    }

    /// The course of a connection that opened its session.
    pub(super) fn of_newborn(errand: Errand) -> Self {
        Self { is_newborn: true, ..Self::new(errand) }
    }

    /// The course of the one connection of a session: open from the start, and over with
    /// whoever has the session.
    pub(super) fn of_duplex() -> Self {
        Self { open: true, ..Self::new(Errand::Listen { after: None }) }
    }

    /// What to ask of whoever has the session.
    pub(super) fn errand(&self) -> &Errand {
        &self.errand
    }

    /// Has the head of the response passed?
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Something is to arrive although its client may have left.
    pub(super) fn lingers(&self) -> bool {
        !self.open && !self.is_listening
    }

    /// The owner says something.
    pub(super) fn told(&mut self, told: Told) -> Next {
        match told {
            Told::Answer(answer) if self.open => self.resume_answered(&answer),
            // Nothing was done there.
            Told::Answer(Answer::Refused(Refusal::Moved)) => Next::Seek,
            Told::Answer(Answer::Refused(Refusal::Busy)) => self.met_a_crowd(),
            Told::Answer(answer) => last([Told::Answer(answer)]),
            Told::Open { welcome, at } => {
                self.cursor = at.or(self.cursor);
                if std::mem::replace(&mut self.open, true) {
                    return Next::Nothing;
                }
                Next::Tell(Told::Open { welcome, at })
            }
            Told::Frame(frame) => self.passes(frame),
            Told::Abort => last([Told::Abort]),
            Told::Moved => self.lost(),
        }
    }

    fn passes(&mut self, frame: Frame) -> Next {
        match &frame {
            Frame::Cursor { id, .. } => {
                let known = self.primed && self.cursor == Some(*id);
                self.primed = true;
                self.cursor = Some(*id);
                if known {
                    // It was told before the owner was lost.
                    return Next::Nothing;
                }
            }
            Frame::Message { id, data } => {
                self.cursor = id.or(self.cursor);
                self.note(data);
            }
            Frame::Retry(_) | Frame::KeepAlive => {}
        }
        Next::Tell(Told::Frame(frame))
    }

    /// Notes which requests have their last word.
    fn note(&mut self, data: &Bytes) {
        match self.owed.len() {
            0 => {}
            1 if !self.batch => self.last = Some(data.clone()),
            _ => self.take_off(data),
        }
    }

    fn take_off(&mut self, data: &Bytes) {
        if let Ok(Message::Response(response)) = Message::parse(data.clone()) {
            self.owed.retain(|id| response.id.as_ref() != Some(id));
        }
    }

    /// The stream has ended in order.
    pub(super) fn ended(&mut self) -> Next {
        last([])
    }

    /// The owner is gone, or the session from it: who knows how far it came.
    pub(super) fn lost(&mut self) -> Next {
        if !self.open && self.is_newborn {
            // Its client does not know it, and opens another.
            return last([Told::Answer(Answer::Refused(Refusal::Unavailable))]);
        }
        if !self.open && self.batch && !self.owed.is_empty() {
            // Some of it may have been done and some not, and nobody can tell which.
            return last([Told::Answer(self.errors(LOST))]);
        }
        if !self.open {
            if let Errand::Post { again, .. } = &mut self.errand {
                // What carries no request does no harm when it is taken twice.
                *again = true;
            }
            return Next::Seek;
        }
        match self.cursor {
            Some(cursor) => {
                self.errand = Errand::Listen { after: Some(cursor.to_string()) };
                Next::Seek
            }
            None => self.end_lost(),
        }
    }

    /// Whoever was asked has not begun.
    pub(super) fn not_started(&mut self) -> Next {
        Next::Seek
    }

    /// The session has as much work waiting as it may.
    fn met_a_crowd(&mut self) -> Next {
        if self.owed.is_empty() {
            return Next::Wait;
        }
        let words = "the session has too much work waiting; try again later";
        last([Told::Answer(self.errors(words))])
    }

    /// The next owner would not go on with the stream.
    fn resume_answered(&mut self, answer: &Answer) -> Next {
        match answer {
            Answer::Refused(Refusal::Moved) => Next::Seek,
            // To resume twice does no harm.
            Answer::Refused(Refusal::Busy | Refusal::Unavailable | Refusal::Stopping) => Next::Wait,
            Answer::Refused(Refusal::NothingMore) => last([]),
            _ => self.end_lost(),
        }
    }

    /// Nobody could be asked for too long.
    pub(super) fn gave_up(&mut self, secs: u64) -> VecDeque<Told> {
        if self.open {
            // The client comes back by itself.
            return [Told::Abort].into();
        }
        if self.owed.is_empty() {
            return [Told::Answer(Answer::Refused(Refusal::Unavailable))].into();
        }
        let words = format!(
            "the session could not be reached for {secs} s, and whether this was done is not known; \
             try again"
        );
        [Told::Answer(self.errors(&words))].into()
    }

    /// What is told to a client whose session could not be asked at all.
    pub(super) fn refused(&mut self, refusal: Refusal) -> VecDeque<Told> {
        if self.open {
            return match self.end_lost() {
                Next::Last(told) => told,
                _ => VecDeque::new(),
            };
        }
        [Told::Answer(Answer::Refused(refusal))].into()
    }

    /// The node leaves: a stream that its client comes back to is ended, elsewhere it goes
    /// on. `None` for what is left to end by itself.
    pub(super) fn leave(&mut self, retry: u32) -> Option<VecDeque<Told>> {
        if !self.open || self.cursor.is_none() {
            return None;
        }
        match (self.primed, self.is_listening) {
            (true, _) => Some([Told::Frame(Frame::Retry(retry))].into()),
            // Clients of these revisions come back only to what broke.
            (false, true) => Some([Told::Abort].into()),
            (false, false) => None,
        }
    }

    /// A stream that cannot go on: its requests end with an error.
    fn end_lost(&mut self) -> Next {
        if let Some(data) = self.last.take() {
            self.take_off(&data);
        }
        if self.is_listening && self.owed.is_empty() {
            return last([Told::Abort]);
        }
        let message = |data: Bytes| Told::Frame(Frame::Message { id: None, data });
        Next::Last(
            std::mem::take(&mut self.owed).into_iter().map(|id| message(error(id, LOST))).collect(),
        )
    }

    /// An error as the last word on each request.
    fn errors(&self, words: &str) -> Answer {
        let mut errors: Vec<Bytes> = self.owed.iter().map(|id| error(id.clone(), words)).collect();
        match errors.pop() {
            Some(only) if !self.batch => Answer::Json(only),
            Some(other) => {
                errors.push(other);
                Answer::Array(errors)
            }
            None => Answer::Nothing,
        }
    }
}

fn last<const N: usize>(told: [Told; N]) -> Next {
    Next::Last(told.into())
}

fn error(id: RequestId, words: &str) -> Bytes {
    Response::error(Some(id), ErrorCode::Refused.number(), words, None).raw().clone()
}

#[cfg(test)]
mod tests;
