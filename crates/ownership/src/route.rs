//! The state of a routed request: what follows from each event of its reply, and from the loss of
//! an owner.
//!
//! A client's connection outlives the owners of its session. A request that was certainly not
//! begun is sent to the next owner as it was; one that may have been begun is sent marked so; a
//! stream is resumed after the last event that was forwarded. Pure decisions: the caller sends,
//! receives and waits.

mod errors;
mod progress;

use std::collections::VecDeque;

use bytes::Bytes;
use conversation::{Answer, Frame, Refusal};
use protocol::{ErrorCode, Rejection, RequestId};

use self::errors::{BUSY, LOST, error_response, message_event, response_id};
use self::progress::{Kind, LostEnd, Position, Progress};
use crate::rules::rule;
use crate::{ReplyEvent, SessionRequest};

/// The state of one client's request on its way through the owners of its session.
pub struct RouteState {
    /// The request for the next owner.
    request: SessionRequest,
    kind: Kind,
    progress: Progress,
    /// The requests of the POST whose final response was not forwarded yet.
    pending: Vec<RequestId>,
    /// The last message that was forwarded, where it may be the final response to the only request,
    /// or on a resumed stream to a request of an earlier POST.
    last_message: Option<Bytes>,
    /// The node that was asked last to take over the session has no room for it.
    lacked_room: bool,
}

/// Is this event progress for the client? The head of a stream is, once; a keep-alive comment or a
/// cursor is not.
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

/// The next step of the node that has the client's connection.
#[derive(Debug)]
pub enum RouteStep {
    /// Forward this event to the client.
    Forward(ReplyEvent),
    /// Wait for the owner, which has the request: there is no event to forward.
    AwaitOwner,
    /// Locate the owner and send the request there. [`crate::retry`] decides how long to wait
    /// before that.
    Locate,
    /// As `Locate`; the node that received the request cannot take it now.
    LocateLater,
    /// Forward these events to the client; then the reply is over.
    Finish(VecDeque<ReplyEvent>),
}

/// What follows from the answer of a node that was asked to take the session over.
#[derive(Debug)]
pub enum TakeOverAnswer {
    /// That node owns the session: send the request there.
    IsOwner,
    /// That node does not own it.
    Step(RouteStep),
}

impl RouteState {
    /// The request of a client that has a session.
    pub fn new(request: SessionRequest) -> Self {
        Self {
            pending: request.requests(),
            kind: Kind::of(&request),
            progress: Progress::HeadPending,
            request,
            last_message: None,
            lacked_room: false,
        }
    }

    /// The request that created its session.
    pub fn of_new_session(request: SessionRequest) -> Self {
        Self { kind: Kind::Initialize, ..Self::new(request) }
    }

    /// The one connection of a duplex session: a stream from the start, which ends with the owner of
    /// the session.
    pub fn of_duplex() -> Self {
        Self {
            kind: Kind::Duplex,
            progress: Progress::Streaming { position: Position::Unresumable, is_primed: false },
            ..Self::new(SessionRequest::Listen { after: None })
        }
    }

    /// The request to send to the owner of the session.
    pub fn request(&self) -> &SessionRequest {
        &self.request
    }

    /// Was the head of a stream forwarded?
    pub fn is_open(&self) -> bool {
        self.progress != Progress::HeadPending
    }

    /// Must the request reach an owner although its client may have left?
    pub fn lingers(&self) -> bool {
        !self.is_open() && !self.kind.is_listening()
    }

    /// The owner has sent an event of the reply.
    pub fn reply_received(&mut self, event: ReplyEvent) -> RouteStep {
        match event {
            ReplyEvent::Answer(answer) if self.is_open() => self.resume_answered(&answer),
            // The owner did not begin the request.
            ReplyEvent::Answer(Answer::Refused(Refusal::Moved)) => RouteStep::Locate,
            ReplyEvent::Answer(Answer::Refused(Refusal::Busy)) => self.session_busy(),
            ReplyEvent::Answer(Answer::Refused(Refusal::UnknownSession)) => self.session_unknown(),
            ReplyEvent::Answer(answer) => finish([ReplyEvent::Answer(answer)]),
            ReplyEvent::Open { welcome, at } => {
                if self.progress.open(welcome, at) {
                    RouteStep::Forward(ReplyEvent::Open { welcome, at })
                } else {
                    RouteStep::AwaitOwner
                }
            }
            ReplyEvent::Frame(frame) => self.frame_received(frame),
            ReplyEvent::Abort => finish([ReplyEvent::Abort]),
            ReplyEvent::Moved => self.owner_lost(),
            ReplyEvent::LeaseLost { held_secs } if !self.is_open() => self.lease_lost(held_secs),
            ReplyEvent::LeaseLost { .. } => self.owner_lost(),
        }
    }

    fn frame_received(&mut self, frame: Frame) -> RouteStep {
        match &frame {
            Frame::Cursor { id, .. } => {
                if self.progress.prime(*id) {
                    // It was forwarded before the owner was lost.
                    return RouteStep::AwaitOwner;
                }
            }
            Frame::Message { id, data } => {
                if self.is_repeated_response(data) {
                    // The stream is resumed from before this message, so it is not forwarded.
                    return RouteStep::AwaitOwner;
                }
                self.progress.message_forwarded(*id);
            }
            Frame::Retry(_) | Frame::KeepAlive => {}
        }
        RouteStep::Forward(ReplyEvent::Frame(frame))
    }

    /// Removes the answered request from the pending ones. Returns whether this is a second final
    /// response: if an owner and the end of its log are lost at once, the next owner sends an
    /// error instead of a result that was forwarded before.
    fn is_repeated_response(&mut self, data: &Bytes) -> bool {
        match &self.kind {
            Kind::Batch => {
                self.note_response(data);
                return false;
            }
            Kind::Resume { answered: Some(answered) }
                if response_id(data).as_ref() == Some(answered) =>
            {
                return true;
            }
            _ => {}
        }
        if matches!(self.kind, Kind::Resume { .. }) || !self.pending.is_empty() {
            self.last_message = Some(data.clone());
        }
        false
    }

    fn note_response(&mut self, data: &Bytes) {
        if let Some(id) = response_id(data) {
            self.pending.retain(|pending| *pending != id);
        }
    }

    /// Has each request of the POST its final response? Only the end of the stream was not
    /// forwarded.
    fn is_answered(&mut self) -> bool {
        if let Some(data) = self.last_message.take() {
            self.note_response(&data);
        }
        !self.kind.is_listening() && self.pending.is_empty()
    }

    /// A node that was asked to take over the session has its maximum of sessions. It did
    /// nothing.
    pub fn no_room_found(&mut self) -> RouteStep {
        self.lacked_room = true;
        RouteStep::LocateLater
    }

    /// A message of this request is too large to be sent between two nodes. A retry would fail in
    /// the same way, so there is none.
    pub fn message_too_large(&mut self, bytes_max: u64) -> RouteStep {
        let text = errors::too_large(bytes_max);
        if self.is_open() {
            return self.end_with(&text);
        }
        if self.pending.is_empty() {
            let rejection = Rejection::new(ErrorCode::Refused, text);
            return finish([ReplyEvent::Answer(Answer::Refused(Refusal::Rejected(rejection)))]);
        }
        finish([ReplyEvent::Answer(self.errors(&text))])
    }

    /// The stream has ended in order.
    pub fn stream_ended(&mut self) -> RouteStep {
        finish([])
    }

    /// The owner is lost, or the session left that node. How far the request was carried out is
    /// not known.
    pub fn owner_lost(&mut self) -> RouteStep {
        self.lacked_room = false;
        match self.progress {
            Progress::HeadPending => self.lost_before_head(),
            Progress::Streaming { position, .. } => self.lost_while_streaming(position),
        }
    }

    fn lost_before_head(&mut self) -> RouteStep {
        match &mut self.kind {
            // Its client does not know the session, and creates another.
            Kind::Initialize => finish([ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable))]),
            // The lost owner may have carried out some requests of the batch and not others; it
            // is not known which.
            Kind::Batch if !self.pending.is_empty() => {
                finish([ReplyEvent::Answer(self.errors(LOST))])
            }
            Kind::Delete { lost_end } => {
                if !conversation::mutant!("route.end_is_unknown") {
                    *lost_end = LostEnd::Possible;
                }
                RouteStep::Locate
            }
            _ => {
                self.mark_again();
                RouteStep::Locate
            }
        }
    }

    fn lost_while_streaming(&mut self, position: Position) -> RouteStep {
        if let Kind::Resume { answered } = &mut self.kind
            && let Some(id) = self.last_message.as_ref().and_then(response_id)
        {
            *answered = Some(id);
        }
        if self.kind != Kind::Batch && self.is_answered() {
            return finish([]);
        }
        match position {
            Position::After(cursor) => {
                self.request = SessionRequest::Listen { after: Some(cursor.to_string()) };
                RouteStep::Locate
            }
            Position::HeadOnly if !matches!(self.kind, Kind::Initialize | Kind::Batch) => {
                self.mark_again();
                RouteStep::Locate
            }
            Position::HeadOnly | Position::Unresumable => self.end_lost(),
        }
    }

    /// The owner has the request, and could not act for so many seconds.
    fn lease_lost(&self, held_secs: u64) -> RouteStep {
        if self.pending.is_empty() || self.kind == Kind::Initialize {
            return finish([ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable))]);
        }
        finish([ReplyEvent::Answer(self.errors(&errors::lease_lost(held_secs)))])
    }

    /// Marks the request as one that the lost owner may have begun. A message without a request
    /// can be sent twice without harm.
    fn mark_again(&mut self) {
        if let SessionRequest::Post { again, .. } = &mut self.request {
            *again |= rule!(MarksAgain);
        }
    }

    /// A node was asked to take the session over, and nothing else was sent to it. `None`: it did
    /// not answer.
    pub fn take_over_answered(&mut self, answer: Option<Answer>) -> TakeOverAnswer {
        TakeOverAnswer::Step(match answer {
            Some(Answer::Nothing) => return TakeOverAnswer::IsOwner,
            Some(Answer::Refused(Refusal::TooManySessions)) => self.no_room_found(),
            Some(Answer::Refused(Refusal::UnknownSession)) => self.session_unknown(),
            _ if conversation::mutant!("route.a_question_has_the_request") => self.owner_lost(),
            _ => self.not_started(),
        })
    }

    /// The node that was called has not begun with the request.
    pub fn not_started(&mut self) -> RouteStep {
        self.lacked_room = false;
        RouteStep::Locate
    }

    /// The session has as many requests waiting as it may.
    fn session_busy(&mut self) -> RouteStep {
        if self.pending.is_empty() {
            return RouteStep::LocateLater;
        }
        finish([ReplyEvent::Answer(self.errors(BUSY))])
    }

    /// The next owner answered the request to resume the stream with something else than a stream.
    fn resume_answered(&mut self, answer: &Answer) -> RouteStep {
        match answer {
            Answer::Refused(Refusal::Moved) => RouteStep::Locate,
            // To resume twice does no harm.
            Answer::Refused(Refusal::Busy | Refusal::Unavailable | Refusal::Stopping) => {
                RouteStep::LocateLater
            }
            Answer::Refused(Refusal::NothingMore) => finish([]),
            // The request that was sent again is answered at once, and the head was forwarded.
            Answer::Json(data) => finish([message_event(data.clone())]),
            Answer::Nothing => finish([]),
            _ => self.end_lost(),
        }
    }

    /// For `secs` no node could take the request. Returns the last events for the client.
    pub fn hold_time_over(&mut self, secs: u64) -> VecDeque<ReplyEvent> {
        if self.is_open() && (self.progress.is_resumable() || self.pending.is_empty()) {
            // The client resumes by itself.
            return [ReplyEvent::Abort].into();
        }
        if self.pending.is_empty() {
            return [ReplyEvent::Answer(Answer::Refused(Refusal::Unavailable))].into();
        }
        let text = if self.lacked_room { errors::no_room(secs) } else { errors::unreachable(secs) };
        if self.is_open() {
            // The client has no event id to resume with.
            let pending = std::mem::take(&mut self.pending);
            return pending
                .into_iter()
                .map(|id| message_event(error_response(id, &text)))
                .collect();
        }
        [ReplyEvent::Answer(self.errors(&text))].into()
    }

    /// No owner could take the request, for this reason. Returns the last events for the client.
    pub fn session_refused(&mut self, refusal: Refusal) -> VecDeque<ReplyEvent> {
        if self.is_open() {
            return match self.end_lost() {
                RouteStep::Finish(event) => event,
                _ => VecDeque::new(),
            };
        }
        [ReplyEvent::Answer(Answer::Refused(refusal))].into()
    }

    /// A node answered that the session is unknown, or not this client's. If a lost owner may
    /// have ended it, the store is asked once more.
    pub fn session_unknown(&mut self) -> RouteStep {
        if let Kind::Delete { lost_end: lost_end @ LostEnd::Possible } = &mut self.kind {
            *lost_end = LostEnd::Asked;
            return RouteStep::Locate;
        }
        RouteStep::Finish(self.session_refused(Refusal::UnknownSession))
    }

    /// The store holds the end of the session, which was this client's, or no record. The latter
    /// is decided only after a live owner had time to re-assert the session. A DELETE that a lost
    /// owner may have carried out is answered as done: the session has ended.
    pub fn session_gone(&mut self) -> RouteStep {
        match self.kind {
            Kind::Delete { lost_end: LostEnd::Possible | LostEnd::Asked } => {
                finish([ReplyEvent::Answer(Answer::Ended)])
            }
            _ => RouteStep::Finish(self.session_refused(Refusal::UnknownSession)),
        }
    }

    /// The node drains: a stream that its client resumes is ended here and continues at another
    /// node. `None` for a reply that ends by itself.
    pub fn node_leaves(&mut self, retry: u32) -> Option<VecDeque<ReplyEvent>> {
        let Progress::Streaming { position: Position::After(_), is_primed } = self.progress else {
            return None;
        };
        match (is_primed, self.kind.is_listening()) {
            (true, _) => Some([ReplyEvent::Frame(Frame::Retry(retry))].into()),
            // Clients of these revisions resume only after a broken connection.
            (false, true) => Some([ReplyEvent::Abort].into()),
            (false, false) => None,
        }
    }

    /// A stream that cannot be resumed: its requests end with an error.
    fn end_lost(&mut self) -> RouteStep {
        self.end_with(LOST)
    }

    /// Ends a stream here, with this error for each pending request.
    fn end_with(&mut self, text: &str) -> RouteStep {
        if !self.is_answered() && self.pending.is_empty() {
            return finish([ReplyEvent::Abort]);
        }
        RouteStep::Finish(
            std::mem::take(&mut self.pending)
                .into_iter()
                .map(|id| message_event(error_response(id, text)))
                .collect(),
        )
    }

    /// An error as the final response to each request.
    fn errors(&self, text: &str) -> Answer {
        let mut errors: Vec<Bytes> =
            self.pending.iter().map(|id| error_response(id.clone(), text)).collect();
        match errors.pop() {
            Some(only) if self.kind != Kind::Batch => Answer::Json(only),
            Some(other) => {
                errors.push(other);
                Answer::Array(errors)
            }
            None => Answer::Nothing,
        }
    }
}

fn finish<const N: usize>(event: [ReplyEvent; N]) -> RouteStep {
    RouteStep::Finish(event.into())
}

#[cfg(test)]
mod tests;
