//! The events that a session is stepped with.

use protocol::{Body, Message, Mirrored, RequestId};

use crate::OwnerTag;

/// A moment of a clock that never goes back, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// This moment and `millis` more.
    pub fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

/// One connection to the client that can be written to: a POST's response, a
/// GET's, or the one pipe of a duplex transport. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SinkId(pub u64);

/// Something that happened to a session.
#[derive(Clone, Debug)]
pub enum Event {
    /// The client posted a message; `sink` takes what answers it.
    Posted {
        /// Where the answer goes. On a duplex transport the answer is only that the message was
        /// accepted; what the server sends goes to the session's one stream.
        sink: SinkId,
        /// What was posted.
        body: Body,
        /// The headers that mirror it, where any were sent.
        mirrored: Option<Box<Mirrored>>,
        /// A former owner may have received the message, too: a request is attached to its
        /// logged stream, run if running it twice does no harm, or ended with an error.
        again: bool,
        /// Another node carries the answer to the client, and may lose it on the way: then it
        /// posts this again.
        forwarded: bool,
    },
    /// The client opened a GET stream, perhaps to resume one after an event.
    Listened {
        /// Where the stream goes.
        sink: SinkId,
        /// `Last-Event-ID`, unparsed.
        after: Option<String>,
    },
    /// The client deleted the session. It is answered on [`Event::Ended`].
    Deleted {
        /// Where the answer goes.
        sink: SinkId,
    },
    /// The client has closed that connection, or reads it too slowly.
    SinkClosed {
        /// The closed connection.
        sink: SinkId,
    },
    /// The link that [`crate::Effect::OpenLink`] requested is open.
    LinkUp,
    /// The tenant's server sent a message.
    ServerMessage {
        /// The message.
        message: Message,
        /// The client's request it belongs to, where the link knows.
        about: Option<RequestId>,
    },
    /// The link could not take a message of ours: its queue is full.
    Unsent {
        /// What was not sent.
        message: Message,
    },
    /// The link is closed; what was in flight on it will not be answered.
    LinkDown {
        /// Why, fit for the client to read: no secret, no path, no payload.
        reason: String,
    },
    /// The log holds every entry up to and including this number.
    Appended {
        /// The last number held.
        through: u64,
    },
    /// The record holds the state of this version.
    Saved {
        /// The version.
        version: u64,
    },
    /// The node has claimed the session from itself, after its lease lapsed: what is
    /// written from now on is written under another token.
    Reclaimed {
        /// The current owner.
        owner_tag: OwnerTag,
    },
    /// The node is to give the session up: once nothing is in flight, or at once. What is
    /// in flight then gets an error as its final response; everything is in the log before
    /// the session is [`crate::Cause::Moved`].
    HandOver {
        /// Do not wait for requests in flight.
        at_once: bool,
    },
    /// The time that [`crate::Session::deadline`] named has passed, or seems to have.
    DeadlinePassed,
    /// The node stops: the session ends, its open requests get an error, its streams are closed.
    Stopping,
    /// The store has answered the end of the session, or has not for too long. Brought once
    /// after [`crate::Effect::Over`], for every cause but those that leave the record.
    Ended {
        /// The store holds the end. Otherwise it is not known whether it does.
        durable: bool,
    },
}
