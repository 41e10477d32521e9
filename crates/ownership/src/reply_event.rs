//! What one connection of a client receives from the owner of its session.

use conversation::{Answer, EventId, Frame};

/// One event of the reply to a connection. Either a single `Answer`, or `Open`, any number of
/// `Frame`s and perhaps `Abort`. After the last one comes `None`. (A duplex connection is
/// open from the start and told only frames, and perhaps `Abort`.)
#[derive(Clone, Debug)]
pub enum ReplyEvent {
    /// The whole answer.
    Answer(Answer),
    /// The answer is an SSE stream.
    Open {
        /// Does the head name the new session?
        welcome: bool,
        /// Where the stream can be gone on with if nothing more of it is told; none for
        /// one that is in no log.
        at: Option<EventId>,
    },
    /// The stream's next frame.
    Frame(Frame),
    /// End the stream so that the client sees a broken connection.
    Abort,
    /// The session has left this owner, and the stream with it.
    Moved,
    /// The owner lost its lease and did not get it back for as long as requests are held. What
    /// it did of the request is not known. Only where nothing else was told.
    LeaseLost {
        /// How long the request was held, in seconds.
        held_secs: u64,
    },
}
