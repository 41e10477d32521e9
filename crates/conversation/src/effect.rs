//! The effects that a session asks its caller to perform.

use std::sync::Arc;

use bytes::Bytes;
use protocol::{Message, Rejection, RequestId};

use crate::{EventId, SinkId};

/// What to do next. Effects are performed in the order they are given.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Give the sink its whole answer. It is finished then.
    Answer {
        /// Who is answered.
        sink: SinkId,
        /// With what.
        answer: Answer,
    },
    /// Open the sink as an SSE stream.
    Open {
        /// Which sink.
        sink: SinkId,
        /// Does the head name the new session (SES-01)?
        welcome: bool,
        /// The event after which the stream can be resumed if nothing more of it arrives; none for
        /// a stream that is in no log.
        at: Option<EventId>,
    },
    /// Write one frame to an open sink.
    Write {
        /// Which sink.
        sink: SinkId,
        /// What to write.
        frame: Frame,
    },
    /// End an open sink. It is finished then.
    Finish {
        /// Which sink.
        sink: SinkId,
        /// How.
        ending: Ending,
    },
    /// Open a link to the tenant's server.
    OpenLink,
    /// Close the link; no message that it still carries is wanted.
    CloseLink,
    /// Send a message to the tenant's server.
    Send(Message),
    /// Append entries to the session's log; bring [`crate::Event::Appended`] when they are held.
    Append {
        /// The number of the first entry; each further one is one more.
        first: u64,
        /// The oldest number still replayable; what is below it may be trimmed.
        floor: u64,
        /// The entries, encoded.
        entries: Vec<Bytes>,
    },
    /// Write what must outlive this owner into the session's record; bring
    /// [`crate::Event::Saved`] when it is held. A newer version makes an older one needless.
    Save {
        /// Rises with every change.
        version: u64,
        /// The state, encoded; [`crate::Session::restore`] reads it.
        state: Arc<[u8]>,
    },
    /// The session is over: it has no further effects, and its id is answered "unknown" from
    /// now on. Only the answers to DELETEs follow, on [`crate::Event::Ended`].
    Over {
        /// Why.
        cause: Cause,
    },
    /// Count a fact in the metrics.
    Count(Fact),
}

impl Effect {
    /// Must the store hold the session's record first? This effect shows the session's id to a
    /// client, or writes to the record or the log.
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
    /// In order: nothing more is sent on this connection.
    Proper,
    /// So that the client sees a broken connection.
    Abort,
    /// The session moves to another owner, and the stream with it: the node that holds the
    /// client's connection attaches the connection to the new owner.
    Moved,
}

/// The whole answer to one HTTP request that did not become a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The notification or response was taken (POST-08).
    Accepted,
    /// One JSON-RPC message.
    Json(Bytes),
    /// One JSON-RPC message, the first of a new session, whose id goes with it (SES-01).
    Welcome(Bytes),
    /// A batch's responses, each a JSON-RPC message.
    Array(Vec<Bytes>),
    /// The request was cancelled by its own client: nothing more is sent for it (CAN-01).
    Nothing,
    /// The client deleted the session (SES-07), and the store holds that.
    Ended,
    /// It was not taken.
    Refused(Refusal),
}

/// Why a request was not taken, for the front to put into a status.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// The message breaks a rule of the protocol.
    #[error("{0}")]
    Rejected(Rejection),
    /// No such session, or none that this caller may see.
    #[error("the session is unknown or over; initialize a new one")]
    UnknownSession,
    /// `Last-Event-ID` names nothing that this session ever sent.
    #[error("Last-Event-ID names no event of this session")]
    UnknownEvent,
    /// The stream that `Last-Event-ID` names is finished, and nothing comes after that event.
    #[error("the stream is finished; nothing comes after this event")]
    NothingMore,
    /// The tenant holds as many sessions as it may.
    #[error("the tenant holds as many sessions as it may; try again later")]
    TooManySessions,
    /// The session has more work waiting than it may.
    #[error("the session has too much work waiting; try again later")]
    Busy,
    /// Nothing was done: the session has just left this owner. Ask where it is now.
    #[error("the session is changing hands; try again")]
    Moved,
    /// The node cannot do this now.
    #[error("the node is stopping; try again later")]
    Stopping,
    /// What all nodes must agree on cannot be reached.
    #[error("the session store is unavailable; try again later")]
    Unavailable,
}

/// One piece of an SSE stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// An id and no data, so that the client can resume from this point (SSE-04), and
    /// how long to wait before it does, in milliseconds (SSE-05).
    Cursor {
        /// The point.
        id: EventId,
        /// The wait.
        retry: u32,
    },
    /// How long to wait before coming back, in milliseconds.
    Retry(u32),
    /// A JSON-RPC message.
    Message {
        /// Its event id; none where the stream cannot be resumed.
        id: Option<EventId>,
        /// The message, on one line.
        data: Bytes,
    },
    /// A frame without content. It begins the body of a response, or keeps a proxy from taking an
    /// idle connection for dead (SSE-13). In the second case the node that holds the client's
    /// connection sends it, not the session.
    KeepAlive,
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its client ended it.
    Deleted,
    /// The handshake failed.
    HandshakeFailed,
    /// Nothing happened in it for too long.
    Idle,
    /// Its one connection is closed (duplex transports).
    Disconnected,
    /// The node stopped.
    Stopping,
    /// Nothing happened in it for a while; its record stays, and the next touch wakes it.
    Asleep,
    /// The node gave it up; its record stays, and the next touch claims it.
    Moved,
}

/// A fact that is counted in the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// A request got its final response.
    Settled {
        /// Its id, for the log.
        id: RequestId,
        /// Did it get a result?
        result: bool,
        /// How long it took, in milliseconds.
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
