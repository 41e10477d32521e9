//! The effects of a session, which its caller performs.

use bytes::Bytes;
use protocol::{Message, Rejection, RequestId};

use crate::{EventId, SinkId, StateChange};

/// One effect. Effects are performed in the order they are given.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Answer the sink with one whole answer. The sink is finished then.
    Answer {
        /// The sink to answer.
        sink: SinkId,
        /// The answer.
        answer: Answer,
    },
    /// Open the sink as an SSE stream.
    Open {
        /// The sink to open.
        sink: SinkId,
        /// Does the head name the new session (SES-01)?
        welcome: bool,
        /// The event to resume the stream after if no further event arrives; `None` for a stream
        /// that is in no log.
        at: Option<EventId>,
    },
    /// Write one frame to an open sink.
    Write {
        /// The sink to write to.
        sink: SinkId,
        /// The frame.
        frame: Frame,
    },
    /// End an open sink. It is finished then.
    Finish {
        /// The sink to end.
        sink: SinkId,
        /// How it ends.
        ending: Ending,
    },
    /// Open a link to the tenant's server.
    OpenLink,
    /// Close the link; drop the messages that it still carries. What it has saved is not used again.
    CloseLink,
    /// As [`Self::CloseLink`], but the next owner carries on what it has saved.
    LeaveLink,
    /// Send a message to the tenant's server.
    Send(Message),
    /// Append entries to the session's log; report [`crate::Event::Appended`] when the log holds
    /// them.
    Append {
        /// The number of the first entry; each further one is one more.
        first: u64,
        /// The oldest number that can still be replayed; entries below it may be trimmed.
        floor: u64,
        /// The entries, encoded.
        entries: Vec<Bytes>,
    },
    /// Write the state that must outlive this owner into the session's record; report
    /// [`crate::Event::Saved`] when the record holds it. A newer version replaces an older one.
    Save {
        /// One more than that of the change before.
        version: u64,
        /// The state or what changed, encoded; [`crate::Session::restore`] reads it.
        change: StateChange,
    },
    /// The session is over: it has no further effects, and its id is unknown from now on. Only
    /// the answers to DELETEs follow, on [`crate::Event::Ended`].
    Over {
        /// The cause.
        cause: Cause,
    },
    /// Count a fact in the metrics.
    Count(Fact),
}

impl Effect {
    /// Must the store hold the session's record first? True for an effect that shows the
    /// session's id to a client, or writes to the record or the log.
    pub fn needs_record(&self) -> bool {
        matches!(
            self,
            Self::Answer { answer: Answer::Welcome(_), .. }
                | Self::Open { welcome: true, .. }
                | Self::Append { .. }
                | Self::Save { .. }
        )
    }
}

/// How a connection that listens to a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In order: no further event is sent on this connection.
    Proper,
    /// Abruptly, so that the client detects a broken connection.
    Abort,
    /// The session moves to another owner, and the stream with it: the node that holds the
    /// client's connection attaches the connection to the new owner.
    Moved,
}

/// The whole answer to one HTTP request that did not become a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The notification or response was accepted (POST-08).
    Accepted,
    /// One JSON-RPC message.
    Json(Bytes),
    /// One JSON-RPC message, the first of a new session; the session id is sent with it (SES-01).
    Welcome(Bytes),
    /// A batch's responses, each a JSON-RPC message.
    Array(Vec<Bytes>),
    /// The client cancelled the request: no response is sent (CAN-01).
    Nothing,
    /// The client deleted the session (SES-07), and the store holds its end.
    Ended,
    /// The request was refused.
    Refused(Refusal),
}

impl Answer {
    /// The bytes of its messages.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Json(data) | Self::Welcome(data) => data.len(),
            Self::Array(all) => all.iter().map(Bytes::len).sum(),
            Self::Accepted | Self::Nothing | Self::Ended | Self::Refused(_) => 0,
        }
    }
}

/// Why a request was refused; the front maps it to a status.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The message breaks a rule of the protocol.
    #[error("{0}")]
    Rejected(Rejection),
    /// The session does not exist, or belongs to another caller.
    #[error("the session is unknown or over; initialize a new one")]
    UnknownSession,
    /// `Last-Event-ID` names no event of this session.
    #[error("Last-Event-ID names no event of this session")]
    UnknownEvent,
    /// The stream of `Last-Event-ID` is finished, and no event follows that one.
    #[error("the stream is finished; no event follows this one")]
    NothingMore,
    /// The tenant has its maximum of sessions, or of bytes that they keep.
    #[error(
        "the tenant has as many sessions as it may here, or they keep as many bytes as they may; try \
         again later"
    )]
    TooManySessions,
    /// The session has its maximum of pending work.
    #[error("the session has too much work waiting; try again later")]
    Busy,
    /// The owner did nothing: the session has just left it. Locate the session again.
    #[error("the session is moving to another owner; try again")]
    Moved,
    /// The node is stopping and accepts no new work.
    #[error("the node is stopping; try again later")]
    Stopping,
    /// The store cannot be reached.
    #[error("the session store is unavailable; try again later")]
    Unavailable,
}

/// One piece of an SSE stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// An id without data, so that the client can resume from this point (SSE-04), and how long
    /// to wait before that, in milliseconds (SSE-05).
    Cursor {
        /// The event id.
        id: EventId,
        /// The wait before a resume.
        retry: u32,
    },
    /// How long the client waits before it resumes, in milliseconds.
    Retry(u32),
    /// A JSON-RPC message.
    Message {
        /// Its event id; `None` if the stream cannot be resumed.
        id: Option<EventId>,
        /// The message, on one line.
        data: Bytes,
    },
    /// A frame without content. It begins the body of a response, or keeps a proxy from closing
    /// an idle connection (SSE-13). In the second case the node that has the client's connection
    /// sends it, not the session.
    KeepAlive,
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The client deleted it.
    Deleted,
    /// The handshake failed.
    HandshakeFailed,
    /// It was idle for too long.
    Idle,
    /// Its one connection is closed (duplex transports).
    Disconnected,
    /// The node stopped.
    Stopping,
    /// Its client was revoked.
    Revoked,
    /// The server has lost a state that the client relies on.
    StateLost,
    /// It was idle for a while. Its record stays, and the next request restores it.
    Asleep,
    /// The node released it. Its record stays, and the next request claims it.
    Moved,
}

/// A fact that is counted in the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A request got its final response.
    Settled {
        /// Its id, for the log.
        id: RequestId,
        /// Is it a result and not an error?
        result: bool,
        /// Duration, in milliseconds.
        millis: u64,
    },
    /// A client resumed a stream.
    Resumed(ResumeOutcome),
    /// The tenant's server, or the client, sent a message that belongs to no request.
    Stray,
    /// A message was dropped at a bound.
    Dropped,
}

/// The outcome of a resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// Everything that the client missed is replayed.
    Replayed,
    /// Some of what the client missed was trimmed; its request ended with an error.
    Trimmed,
    /// The stream was finished, and the client had everything.
    Finished,
    /// The id names no event of this session.
    Unknown,
}
