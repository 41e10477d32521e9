//! What one connection of a client receives from the owner of its session.

use conversation::{Answer, EventId, Frame};

/// One event of the reply to a connection: either a single `Answer`, or `Open`, any number of
/// `Frame`s and perhaps `Abort`. `None` follows the last one. (A duplex connection is open from
/// the start and gets only frames, and perhaps `Abort`.)
#[derive(Clone, Debug)]
pub enum ReplyEvent {
    /// The whole answer.
    Answer(Answer),
    /// The answer is an SSE stream.
    Open {
        /// Does the head name the new session?
        welcome: bool,
        /// The event to resume the stream after if no further event arrives; `None` for a stream
        /// that is in no log.
        at: Option<EventId>,
    },
    /// The stream's next frame.
    Frame(Frame),
    /// End the stream so that the client sees a broken connection.
    Abort,
    /// The session has left this owner, and the stream with it.
    Moved,
    /// The owner lost its lease and did not get it back within the hold time. Whether it carried
    /// out the request is not known. Sent only if no other event was.
    LeaseLost {
        /// How long the request was held, in seconds.
        held_secs: u64,
    },
}
