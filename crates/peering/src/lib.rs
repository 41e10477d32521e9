//! Carries calls between nodes: connections, authentication, frames, flow control.
//!
//! The content of a call is opaque bytes here. This crate knows no lease, no store and no session:
//! it reports how a connection ended, and its caller decides what follows for the peer.
//!
//! Two nodes have one connection for each direction of calls. [`LocalNode::connect`] makes one;
//! [`Listener::accept`] accepts one, and [`Arrival::meet`] authenticates its other end. Both return
//! an [`Established`] connection. The caller's end sends the calls of a [`Calls`] over it, the
//! other end answers them with an [`Answerer`].
//!
//! Errors and log lines name the settings of `cluster`, since operators configure this crate there.

mod accept;
mod assembly;
mod calls;
mod connect;
mod connection;
mod encrypted;
mod established;
mod frame;
mod handshake;
mod inbox;
mod incoming_calls;
mod limits;
pub mod metrics;
mod outgoing_call;
mod process_key;
mod proof;
mod protection;
mod socket;
mod tls;
mod unauthenticated;
mod versions;
mod wire;

use std::task::{Context, Poll};

use bytes::Bytes;

pub use accept::{Arrival, Listener};
pub use calls::Calls;
pub use connect::{ConnectError, LocalNode};
pub use connection::Ended;
pub use established::Established;
pub use frame::PIECE_BYTES_MAX;
pub use handshake::{ADDRESS_BYTES_MAX, PeerIdentity, Purpose};
pub use limits::Limits;
pub use protection::Credentials;
pub use socket::OrderlyEnd;
pub use tick::install as install_flush_queue;
pub use tls::{Tls, TlsError, Trust};
pub use versions::Versions;

/// The bytes of a frame beside its piece of a message, at most.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// The longest frame of an authenticated peer, in bytes. A longer frame ends the connection.
const FRAME_BYTES_MAX: usize = frame::PIECE_BYTES_MAX + FRAME_OVERHEAD_BYTES;

/// The longest interval between two pings, in milliseconds: a minute. A longer announced interval
/// counts as this one.
pub const PING_MS_MAX: u64 = 60_000;

/// Answers the calls of peers.
pub trait Answerer: Send + Sync + 'static {
    /// Whether this node starts calls now. Otherwise a call that arrives is answered with "not
    /// started".
    fn takes_calls(&self) -> bool;

    /// Starts a call, on the runtime that reads the connection. Never waits; the replies yield the
    /// results. `None` means "not started": this node did nothing, and the caller may send the call
    /// to another node.
    fn begin_call(&self, call: Bytes) -> Option<Box<dyn Replies>>;
}

/// The replies to a call. Dropped when the caller or its connection is gone. Any thread may poll
/// it, and the peer's other calls wait during the poll: an implementation must not block.
pub trait Replies: Send {
    /// Polls for the next reply; `None` after the last, or after an error. Not polled while the
    /// caller has a whole window of unread replies. An error ends the call. A node that relays a call
    /// returns one, and so does a node that finds only after it began to read a call that it cannot start it.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>>;

    /// Whether the reply just returned is known to be the last. It is then marked as the last, and
    /// this is not polled again.
    fn is_over(&self) -> bool {
        false
    }
}

/// The reason why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The callee did not start the call; it may be sent again.
    #[error("the call was not started")]
    NotStarted,
    /// The link broke, or the callee was lost, after the call may have started.
    #[error("the link to the node was lost")]
    Lost,
    /// The call, or a reply to it, exceeds the bound of one of the two nodes. A retry fails in the
    /// same way.
    #[error("a message is larger than cluster.message_bytes_max ({bytes_max} bytes)")]
    TooLarge {
        /// The bound, in bytes.
        bytes_max: u64,
    },
}
