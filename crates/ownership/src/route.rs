//! What a connection makes of what it is told, and of an owner that is lost: pure decisions.
//!
//! A client's connection outlives the owners of its session. What was certainly not done
//! is asked for again; what may have been done is asked for as such; a stream goes on
//! after the last event that passed.

use std::collections::VecDeque;

use bytes::Bytes;
use conversation::{Answer, EventId, Frame, Refusal};
use protocol::{Body, ErrorCode, Message, Rejection, RequestId, Response};

use crate::rules::rule;
use crate::{ReplyEvent, SessionRequest};

/// The final response to what a lost node may or may not have done.
const LOST: &str = "the node that worked on this was lost; whether it was done is not known";

/// One connection's way through the owners of its session.
pub struct RouteState {
    /// What is asked of the next owner.
    request: SessionRequest,
    /// The requests of the POST, each until its final response has passed.
    owed: Vec<RequestId>,
    batch: bool,
    is_listening: bool,
    /// It began with an event id: the stream may be that of requests of an earlier POST.
    is_resumed: bool,
    /// The request whose final response was the last message when the owner of a resumed stream
    /// was lost.
    answered: Option<RequestId>,
    /// The session was opened with this.
    is_new_session: bool,
    /// The response's head has passed.
    open: bool,
    /// Where the stream is gone on with. None where a message without an event id has passed
    /// since: a resume from before that message would repeat it.
    cursor: Option<EventId>,
    /// The head has passed without an event id, and no message after it: asking again for
    /// the same repeats nothing.
    is_bare: bool,
    /// The stream began with a cursor, so its client comes back to it.
    primed: bool,
    /// The last message that passed, which may be the final response to the only request, or on a
    /// resumed stream to one of which nothing is known here.
    last: Option<Bytes>,
    /// The node that was asked last to take the session up has no room for it.
    no_room: bool,
    /// Whether a lost owner ended the session.
    lost_end: LostEnd,
}

/// What a connection knows of a DELETE that its owner did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LostEnd {
    /// No owner was lost that was asked to end the session.
    No,
    /// One was, and may have done so.
    Possible,
    /// One was, and since then a node has said that the session is unknown.
    Asked,
}

/// Does this bring a client further? The head of a stream does once; what only says that a
/// stream lives, or where it goes on, does not.
pub fn is_progress(event: &ReplyEvent) -> bool {
    match event {
        ReplyEvent::Answer(_)
        | ReplyEvent::Open { .. }
        | ReplyEvent::Frame(Frame::Message { .. }) => true,
        ReplyEvent::Frame(Frame::Cursor { .. } | Frame::Retry(_) | Frame::KeepAlive)
        | ReplyEvent::Abort
        | ReplyEvent::Moved
        | ReplyEvent::LeaseLost { .. } => false,
    }
}

/// What follows.
#[derive(Debug)]
pub enum Next {
    /// Tell the client this.
    Tell(ReplyEvent),
    /// Nothing to tell: an owner has the request.
    Nothing,
    /// Find out where the session is, and send the request there. [`crate::retry`] decides how long
    /// to wait before that.
    Seek,
    /// As `Seek`; the node that was asked cannot take the request now.
    Wait,
    /// Tell the client this, and that is all.
    Last(VecDeque<ReplyEvent>),
}

/// What follows from the answer of a node that was asked to take the session up.
#[derive(Debug)]
pub enum Asked {
    /// It has the session: the request is brought there.
    IsThere,
    /// It has not.
    Next(Next),
}

impl RouteState {
    /// The request of a client that has a session.
    pub fn new(request: SessionRequest) -> Self {
        let batch = matches!(&request, SessionRequest::Post { body: Body::Batch(_), .. });
        Self {
            owed: request.requests(),
            batch,
            is_listening: matches!(request, SessionRequest::Listen { .. }),
            is_resumed: matches!(request, SessionRequest::Listen { after: Some(_) }),
            answered: None,
            is_new_session: false,
            request,
            open: false,
            cursor: None,
            is_bare: false,
            primed: false,
            last: None,
            no_room: false,
            lost_end: LostEnd::No,
        }
    }

    /// The route of a connection that opened its session.
    pub fn of_new_session(request: SessionRequest) -> Self {
        Self { is_new_session: true, ..Self::new(request) }
    }

    /// The route of a session's one connection: open from the start, and ended with the owner of
    /// the session.
    pub fn of_duplex() -> Self {
        Self { open: true, ..Self::new(SessionRequest::Listen { after: None }) }
    }

    /// The request to send to the owner of the session.
    pub fn request(&self) -> &SessionRequest {
        &self.request
    }

    /// Has the head of the response passed?
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Something is to arrive although its client may have left.
    pub fn lingers(&self) -> bool {
        !self.open && !self.is_listening
    }

    /// The owner says something.
    pub fn received(&mut self, event: ReplyEvent) -> Next {
        match event {
            ReplyEvent::Answer(answer) if self.open => self.resume_answered(&answer),
            // Nothing was done there.
            ReplyEvent::Answer(Answer::Refused(Refusal::Moved)) => Next::Seek,
            ReplyEvent::Answer(Answer::Refused(Refusal::Busy)) => self.met_a_crowd(),
            ReplyEvent::Answer(Answer::Refused(Refusal::UnknownSession)) => self.unknown(),
            ReplyEvent::Answer(answer) => last([ReplyEvent::Answer(answer)]),
            ReplyEvent::Open { welcome, at } => {
                self.cursor = at.or(self.cursor);
                if std::mem::replace(&mut self.open, true) {
                    return Next::Nothing;
                }
                self.is_bare = at.is_none() && !welcome;
                Next::Tell(ReplyEvent::Open { welcome, at })
            }
            ReplyEvent::Frame(frame) => self.passes(frame),
            ReplyEvent::Abort => last([ReplyEvent::Abort]),
            ReplyEvent::Moved => self.lost(),
            ReplyEvent::LeaseLost { held_secs } if !self.open => self.lost_its_lease(held_secs),
            ReplyEvent::LeaseLost { .. } => self.lost(),
        }
    }

    fn passes(&mut self, frame: Frame) -> Next {
        match &frame {
            Frame::Cursor { id, .. } => {
                let known = self.primed && self.cursor == Some(*id);
                (self.primed, self.is_bare) = (true, false);
                self.cursor = Some(*id);
                if known {
                    // It was told before the owner was lost.
                    return Next::Nothing;
                }
            }
            Frame::Message { id, data } => {
                if self.note(data) {
                    // The stream goes on from before it: the client does not get it.
                    return Next::Nothing;
                }
                (self.cursor, self.is_bare) = (*id, false);
            }
            Frame::Retry(_) | Frame::KeepAlive => {}
        }
        Next::Tell(ReplyEvent::Frame(frame))
    }

    /// Notes which requests have their final response. Is this a second one? Where an owner and
    /// what it wrote last are lost at once, the next owner tells an error instead of a result that
    /// has passed.
    fn note(&mut self, data: &Bytes) -> bool {
        if self.batch {
            self.take_off(data);
            return false;
        }
        if self.answered.is_some() && answered(data) == self.answered {
            return true;
        }
        if self.is_resumed || !self.owed.is_empty() {
            self.last = Some(data.clone());
        }
        false
    }

    fn take_off(&mut self, data: &Bytes) {
        if let Some(id) = answered(data) {
            self.owed.retain(|owed| *owed != id);
        }
    }

    /// Has each request of the POST its final response? Only the end of the stream has not passed.
    fn is_answered(&mut self) -> bool {
        if let Some(data) = self.last.take() {
            self.take_off(&data);
        }
        !self.is_listening && self.owed.is_empty()
    }

    /// A node that was asked to take the session up has as many sessions as it may. Nothing
    /// was done there.
    pub fn found_no_room(&mut self) -> Next {
        self.no_room = true;
        Next::Wait
    }

    /// A message of this request is too large to be sent between two nodes. It is so each time,
    /// so nothing is asked again.
    pub fn too_large(&mut self, bytes_max: u64) -> Next {
        let words = format!(
            "the request or what it returned is larger than two nodes may send to each other: \
             cluster.message_bytes_max is {bytes_max} bytes; return less, or raise it on every \
             node"
        );
        if self.open {
            return self.end_with(&words);
        }
        if self.owed.is_empty() {
            let rejection = Rejection::new(ErrorCode::Refused, words);
            return last([ReplyEvent::Answer(Answer::Refused(Refusal::Rejected(rejection)))]);
        }
        last([ReplyEvent::Answer(self.errors(&words))])
    }

    /// The stream has ended in order.
    pub fn ended(&mut self) -> Next {
        last([])
    }

    /// The owner is gone, or the session from it: who knows how far it came.
    pub fn lost(&mut self) -> Next {
        self.no_room = false;
        if !self.open && self.is_new_session {
            // Its client does not know it, and opens another.
            return last([ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable))]);
        }
        if !self.open && self.batch && !self.owed.is_empty() {
            // The lost owner may have carried out some requests of the batch and not others; it
            // is not known which.
            return last([ReplyEvent::Answer(self.errors(LOST))]);
        }
        if !self.open {
            self.mark_again();
            if matches!(self.request, SessionRequest::Delete)
                && !conversation::mutant!("route.end_is_unknown")
            {
                self.lost_end = LostEnd::Possible;
            }
            return Next::Seek;
        }
        if self.is_resumed {
            self.answered = self.last.as_ref().and_then(answered).or(self.answered.take());
        }
        if !self.batch && self.is_answered() {
            return last([]);
        }
        match self.cursor {
            Some(cursor) => {
                self.request = SessionRequest::Listen { after: Some(cursor.to_string()) };
                Next::Seek
            }
            None if self.is_bare && !self.is_new_session && !self.batch => {
                self.mark_again();
                Next::Seek
            }
            None => self.end_lost(),
        }
    }

    /// The owner has the request, and could not act for so many seconds.
    fn lost_its_lease(&self, held_secs: u64) -> Next {
        if self.owed.is_empty() || self.is_new_session {
            return last([ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable))]);
        }
        let words = format!(
            "the node that has the session could not act on it for {held_secs} s \
             (sessions.hold_ms): it held no lease, or the store did not confirm that it owns the \
             session; whether this was done is not known; try again"
        );
        last([ReplyEvent::Answer(self.errors(&words))])
    }

    /// The next owner is told that the lost one may have begun with the request. A message that
    /// carries no request is harmless when it is taken twice.
    fn mark_again(&mut self) {
        if let SessionRequest::Post { again, .. } = &mut self.request {
            *again |= rule!(MarksAgain);
        }
    }

    /// A node was asked to take the session up, and got nothing to do but that. `None`: it did
    /// not answer.
    pub fn asked(&mut self, answer: Option<Answer>) -> Asked {
        Asked::Next(match answer {
            Some(Answer::Nothing) => return Asked::IsThere,
            Some(Answer::Refused(Refusal::TooManySessions)) => self.found_no_room(),
            Some(Answer::Refused(Refusal::UnknownSession)) => self.unknown(),
            _ if conversation::mutant!("route.a_question_has_the_request") => self.lost(),
            _ => self.not_started(),
        })
    }

    /// The node that was called has not begun with the request.
    pub fn not_started(&mut self) -> Next {
        self.no_room = false;
        Next::Seek
    }

    /// The session has as much work waiting as it may.
    fn met_a_crowd(&mut self) -> Next {
        if self.owed.is_empty() {
            return Next::Wait;
        }
        let words = "the session has too much work waiting; try again later";
        last([ReplyEvent::Answer(self.errors(words))])
    }

    /// The next owner would not go on with the stream.
    fn resume_answered(&mut self, answer: &Answer) -> Next {
        match answer {
            Answer::Refused(Refusal::Moved) => Next::Seek,
            // To resume twice does no harm.
            Answer::Refused(Refusal::Busy | Refusal::Unavailable | Refusal::Stopping) => Next::Wait,
            Answer::Refused(Refusal::NothingMore) => last([]),
            // What was asked for again is answered at once, and the head has passed.
            Answer::Json(data) => last([message(data.clone())]),
            Answer::Nothing => last([]),
            _ => self.end_lost(),
        }
    }

    /// For too long no node could take the request.
    pub fn gave_up(&mut self, secs: u64) -> VecDeque<ReplyEvent> {
        if self.open && (self.cursor.is_some() || self.owed.is_empty()) {
            // The client comes back by itself.
            return [ReplyEvent::Abort].into();
        }
        if self.owed.is_empty() {
            return [ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable))].into();
        }
        let words = if self.no_room {
            format!(
                "the owner of the session is gone, and for {secs} s no node that was asked had \
                 room for it (sessions.sessions_max); whether this was done is not known; try again"
            )
        } else {
            format!(
                "the session could not be reached for {secs} s, and whether this was done is not \
                 known; try again"
            )
        };
        if self.open {
            // The client has no event id to come back with.
            let owed = std::mem::take(&mut self.owed);
            return owed.into_iter().map(|id| message(error(id, &words))).collect();
        }
        [ReplyEvent::Answer(self.errors(&words))].into()
    }

    /// What is told to a client whose session could not be asked at all.
    pub fn refused(&mut self, refusal: Refusal) -> VecDeque<ReplyEvent> {
        if self.open {
            return match self.end_lost() {
                Next::Last(event) => event,
                _ => VecDeque::new(),
            };
        }
        [ReplyEvent::Answer(Answer::Refused(refusal))].into()
    }

    /// A node says that the session is unknown, or not this client's. Where a lost owner may have
    /// ended it, the store is asked which, once.
    pub fn unknown(&mut self) -> Next {
        if self.lost_end == LostEnd::Possible {
            self.lost_end = LostEnd::Asked;
            return Next::Seek;
        }
        Next::Last(self.refused(Refusal::UnknownSession))
    }

    /// The store holds the end of the session, which was this client's, or nothing of it, which is
    /// found only where an owner that lives had the time to write it anew. A DELETE that a lost
    /// owner may have done is answered as done: what its client asked for holds.
    pub fn gone(&mut self) -> Next {
        match self.lost_end {
            LostEnd::Possible | LostEnd::Asked => last([ReplyEvent::Answer(Answer::Ended)]),
            LostEnd::No => Next::Last(self.refused(Refusal::UnknownSession)),
        }
    }

    /// The node leaves: a stream that its client comes back to is ended, elsewhere it goes
    /// on. `None` for what is left to end by itself.
    pub fn leave(&mut self, retry: u32) -> Option<VecDeque<ReplyEvent>> {
        if !self.open || self.cursor.is_none() {
            return None;
        }
        match (self.primed, self.is_listening) {
            (true, _) => Some([ReplyEvent::Frame(Frame::Retry(retry))].into()),
            // Clients of these revisions come back only to what broke.
            (false, true) => Some([ReplyEvent::Abort].into()),
            (false, false) => None,
        }
    }

    /// A stream that cannot go on: its requests end with an error.
    fn end_lost(&mut self) -> Next {
        self.end_with(LOST)
    }

    /// A stream that ends here, with this error for each request that has no response yet.
    fn end_with(&mut self, words: &str) -> Next {
        if !self.is_answered() && self.owed.is_empty() {
            return last([ReplyEvent::Abort]);
        }
        Next::Last(
            std::mem::take(&mut self.owed)
                .into_iter()
                .map(|id| message(error(id, words)))
                .collect(),
        )
    }

    /// An error as the final response to each request.
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

fn last<const N: usize>(event: [ReplyEvent; N]) -> Next {
    Next::Last(event.into())
}

/// The request that this message is the final response to.
fn answered(data: &Bytes) -> Option<RequestId> {
    match Message::parse(data.clone()) {
        Ok(Message::Response(response)) => response.id,
        _ => None,
    }
}

fn message(data: Bytes) -> ReplyEvent {
    ReplyEvent::Frame(Frame::Message { id: None, data })
}

fn error(id: RequestId, words: &str) -> Bytes {
    Response::error(Some(id), ErrorCode::Refused.number(), words, None).raw().clone()
}

#[cfg(test)]
mod tests;
