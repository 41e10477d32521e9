//! The events of a session.

use std::sync::Arc;

use protocol::{Body, Message, Mirrored, Position, Request, RequestId};
use serde::{Deserialize, Serialize};

use crate::OwnerTag;

/// A time of a monotonic clock, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// This time plus `millis`.
    pub fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

/// One connection to the client: the response to a POST or a GET, or the pipe of a duplex
/// transport. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SinkId(pub u64);

/// Identifies what the settings say about the server of a tenant: the same number wherever they say the
/// same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Definition(pub u32);

/// One event of a session.
#[derive(Clone, Debug)]
pub enum Event {
    /// The client posted a message.
    Posted {
        /// The sink for the answer. On a duplex transport the answer is only that the message was
        /// accepted; messages of the server are written to the session's single stream.
        sink: SinkId,
        /// The message or batch.
        body: Body,
        /// The headers that mirror it, if any were sent.
        mirrored: Option<Box<Mirrored>>,
        /// A former owner may have received the message too. A request is attached to its logged
        /// stream, run if running it twice does no harm, or ended with an error.
        again: bool,
        /// Another node forwards the answer to the client. If it loses the answer, it posts the
        /// message again.
        forwarded: bool,
    },
    /// The client opened a GET stream, perhaps to resume one after an event.
    Listened {
        /// The sink for the stream.
        sink: SinkId,
        /// `Last-Event-ID`, unparsed.
        after: Option<String>,
    },
    /// The client deleted the session. The answer follows on [`Event::Ended`].
    Deleted {
        /// The sink for the answer.
        sink: SinkId,
    },
    /// The client has closed that connection, or reads it too slowly.
    SinkClosed {
        /// The closed connection.
        sink: SinkId,
    },
    /// The link that [`crate::Effect::OpenLink`] requested is opened to this server; comes before
    /// [`Event::LinkUp`]. Without this event it is not known whether the server is another one.
    BackendChosen {
        /// Its definition, if it is known.
        definition: Option<Definition>,
        /// The settings of the server were changed since the session's former link was opened.
        is_replaced: bool,
    },
    /// The link that [`crate::Effect::OpenLink`] requested is open.
    LinkUp,
    /// The tenant's server sent a message.
    ServerMessage {
        /// The message.
        message: Message,
        /// The client's request that it belongs to, if the link knows it.
        about: Option<RequestId>,
        /// How far the server's stream was read with it, if another owner could request the rest.
        position: Option<Box<Position>>,
    },
    /// A stream of the tenant's server was read so far, and no message came.
    ServerAdvanced {
        /// The client's request that the stream belongs to, if any.
        about: Option<RequestId>,
        /// How far it was read.
        position: Box<Position>,
    },
    /// The server does not know its session any more, and has not run this request: the next link sends it
    /// again. [`Event::LinkDown`] follows.
    ServerReturned {
        /// The request.
        request: Request,
    },
    /// The server has lost a state that the client relies on: the session ends.
    ServerStateLost,
    /// What the link of another owner needs to carry on; replaces what was saved before. The session keeps
    /// it as it is.
    LinkSaved {
        /// The state.
        state: Arc<str>,
    },
    /// The link did not accept a message of the session: its queue is full.
    Unsent {
        /// The message.
        message: Message,
    },
    /// Another session needs a server, and the tenant has as many as it may: the link is closed if
    /// the server has been idle for `idle_server_secs`.
    ServerRoomWanted,
    /// The settings of the server were changed, and it keeps nothing between two requests: the link is
    /// closed as soon as it is idle.
    ServerRetired,
    /// The link is closed; requests in flight on it get no response.
    LinkDown {
        /// The reason, as a text for the client: no secret, no path, no payload.
        reason: String,
    },
    /// The log holds every entry up to and including this number.
    Appended {
        /// The last number that it holds.
        through: u64,
    },
    /// The record holds the state of this version.
    Saved {
        /// The version.
        version: u64,
    },
    /// The node has claimed the session from itself, after its lease lapsed. What is written from
    /// now on is written under another token.
    Reclaimed {
        /// The current owner.
        owner_tag: OwnerTag,
    },
    /// The node is to release the session: once nothing is in flight, or at once. In the second
    /// case requests in flight get an error as their final response. The log holds everything
    /// before the session ends with [`crate::Cause::Moved`].
    HandOver {
        /// Release at once, without waiting for requests in flight.
        at_once: bool,
    },
    /// The caller's judgement of the bytes that the session's tenant keeps on the node.
    Budget(BudgetVerdict),
    /// The node is not to release the session after all. Has no effect on a session that has left,
    /// or that is released at once.
    HandOverCancelled,
    /// The time of [`crate::Session::deadline`] has passed, or may have.
    DeadlinePassed,
    /// The session's client was revoked: its requests are cancelled at the server, and the session ends.
    Revoked,
    /// The node stops: the session ends, its pending requests get an error, its streams are
    /// closed.
    Stopping,
    /// The store has acknowledged the end of the session, or did not in time. Reported once after
    /// [`crate::Effect::Over`], for every cause but those that keep the record.
    Ended {
        /// Did the store acknowledge the end? Otherwise it is not known.
        durable: bool,
    },
}

/// The consequence of the bytes that a tenant keeps on the node, for one of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetVerdict {
    /// The tenant may keep more: the session accepts requests.
    Available,
    /// The tenant keeps as much as it may: a new request gets an error. Requests in flight go on.
    Exhausted,
    /// Drop the events that were delivered, or could have been: those that the store holds and
    /// that are older than `hold_ms`.
    Trim,
    /// Leave memory if the session is idle. Its link is closed if that is allowed at all
    /// (`idle_stop_secs`).
    Sleep,
    /// Whether the tenant keeps as much in the store as it may. While it does, the session does not fall
    /// asleep before [`Self::Trim`] could drop what its log has: the events would stay in the store.
    Store {
        /// It does, and no event may be dropped before this time.
        exhausted: Option<Millis>,
    },
}
