//! What kind of request is routed, and how far its reply was forwarded.

use conversation::EventId;
use protocol::{Body, RequestId};

use crate::SessionRequest;

/// The kind of the client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A POST of one message.
    Post,
    /// A POST of a batch.
    Batch,
    /// The POST that created the session.
    Initialize,
    /// A GET for a new stream.
    Get,
    /// A GET after an event id: the stream may be that of requests of an earlier POST.
    Resume {
        /// The request whose final response was the last message when an owner was lost.
        answered: Option<RequestId>,
    },
    /// A DELETE.
    Delete {
        /// Whether a lost owner ended the session.
        lost_end: LostEnd,
    },
    /// The one connection of a duplex session.
    Duplex,
}

impl Kind {
    /// The kind of the request of a client that has a session.
    pub(super) fn of(request: &SessionRequest) -> Self {
        match request {
            SessionRequest::Post { body: Body::One(_), .. } => Self::Post,
            SessionRequest::Post { body: Body::Batch(_), .. } => Self::Batch,
            SessionRequest::Listen { after: None } => Self::Get,
            SessionRequest::Listen { after: Some(_) } => Self::Resume { answered: None },
            SessionRequest::Delete => Self::Delete { lost_end: LostEnd::No },
        }
    }

    /// Does the client receive all messages of the session, and not the reply to a POST?
    pub(super) fn is_listening(&self) -> bool {
        matches!(self, Self::Get | Self::Resume { .. } | Self::Duplex)
    }
}

/// What is known of a DELETE that its owner did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostEnd {
    /// No owner was lost that had received the DELETE.
    No,
    /// One was lost, and may have ended the session.
    Possible,
    /// One was lost, and since then a node has answered that the session is unknown.
    Asked,
}

/// How far the reply was forwarded to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// No answer, and no head of a stream.
    HeadPending,
    /// The head of a stream.
    Streaming {
        position: Position,
        /// The stream has sent a cursor, so its client resumes it.
        is_primed: bool,
    },
}

/// Where the next owner continues a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// After this event.
    After(EventId),
    /// Only the head was forwarded, without an event id: the same request again repeats nothing.
    HeadOnly,
    /// A message without an event id was forwarded since: a stream resumed from before it would
    /// repeat it.
    Unresumable,
}

impl Progress {
    /// An owner opens the stream. Returns whether its head is to be forwarded: only the first is.
    pub(super) fn open(&mut self, welcome: bool, at: Option<EventId>) -> bool {
        let opened = at.map(Position::After);
        match self {
            Self::Streaming { position, .. } => {
                *position = opened.unwrap_or(*position);
                false
            }
            Self::HeadPending => {
                let bare = if welcome { Position::Unresumable } else { Position::HeadOnly };
                *self = Self::Streaming { position: opened.unwrap_or(bare), is_primed: false };
                true
            }
        }
    }

    /// The owner sends a cursor. Returns whether the client has it already.
    pub(super) fn prime(&mut self, id: EventId) -> bool {
        let Self::Streaming { position, is_primed } = self else { return false };
        let is_known = *is_primed && *position == Position::After(id);
        (*position, *is_primed) = (Position::After(id), true);
        is_known
    }

    /// A message is forwarded.
    pub(super) fn message_forwarded(&mut self, id: Option<EventId>) {
        if let Self::Streaming { position, .. } = self {
            *position = id.map_or(Position::Unresumable, Position::After);
        }
    }

    /// Can a client resume the stream after an event?
    pub(super) fn is_resumable(&self) -> bool {
        matches!(self, Self::Streaming { position: Position::After(_), .. })
    }
}
