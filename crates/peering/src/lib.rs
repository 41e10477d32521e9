//! Carries calls between nodes: connections, how two nodes prove themselves, frames, flow control.
//!
//! What a call says is bytes here. This crate knows no lease, no store and no session: it says
//! how a connection ended, and its caller decides what follows for the peer.
//!
//! There is one connection each way of calling between two nodes. [`LocalNode::connect`] makes one;
//! [`Listener::accept`] takes one, and [`Arrival::meet`] finds out who made it. Both give an
//! [`Established`] connection. The caller's end carries the calls of a [`Calls`] over it, the other
//! end answers them by an [`Answerer`].
//!
//! Errors and log lines name the settings of `cluster`, under which operators find what is here.

mod accept;
mod assembly;
mod calls;
mod connect;
mod connection;
mod established;
mod frame;
mod handshake;
mod inbox;
mod incoming_calls;
mod limits;
pub mod metrics;
mod outgoing_call;
mod proof;
mod tls;
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
pub use tick::install as install_flush_queue;
pub use tls::{Tls, TlsError, Trust};
pub use versions::Versions;
pub use wire::OrderlyEnd;

/// Room in a frame beside its piece of a message, in bytes.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// Longest frame of a peer that has proven itself, in bytes. A longer frame ends the connection.
const FRAME_BYTES_MAX: usize = frame::PIECE_BYTES_MAX + FRAME_OVERHEAD_BYTES;

/// Longest time between two pings, in milliseconds: a minute. A peer that says more is expected to
/// send something as often.
pub const PING_MS_MAX: u64 = 60_000;

/// Answers the calls of peers.
pub trait Answerer: Send + Sync + 'static {
    /// Does this node begin calls now? A call that comes otherwise is "not started".
    fn takes_calls(&self) -> bool;

    /// Takes a call, on the runtime that reads the connection. Never waits; what comes of it is
    /// told by the replies. `None` means "not started": nothing was done, and the caller may send
    /// the call elsewhere.
    fn begin_call(&self, call: Bytes) -> Option<Box<dyn Replies>>;
}

/// What comes of a call. It is dropped when its caller is gone, or the connection to it. Any
/// thread may ask, and holds back the peer's other calls while it does: nothing is waited for here.
pub trait Replies: Send {
    /// The next reply; `None` after the last, or after an error. Not asked while the caller
    /// has a whole window of replies that it did not take. An error ends the call: only a
    /// node that passes a call on to another has one.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>>;

    /// Was the reply that was just given the last, as far as is known? It is then sent as the last,
    /// and this is not polled again.
    fn is_over(&self) -> bool {
        false
    }
}

/// Why a call has no more replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The callee did nothing; the call may be sent again.
    #[error("the call was not started")]
    NotStarted,
    /// The link broke, or the callee went, after the call may have begun.
    #[error("the link to the node was lost")]
    Lost,
    /// The call, or a reply to it, is larger than one of the two nodes allows. The same call
    /// has the same outcome again.
    #[error("a message is larger than cluster.message_bytes_max ({bytes_max} bytes)")]
    TooLarge {
        /// The bound, in bytes.
        bytes_max: u64,
    },
}
