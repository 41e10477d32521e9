//! Which node owns what, and how to reach it.
//!
//! A [`Cluster`] keeps this node's lease, knows the other nodes, and carries calls to
//! them. What a call says is its callers' business: here it is bytes.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use protocol::SessionId;
use store::{Incarnation, Store};

mod settings;

pub use settings::Settings;

/// What this node does with a peer's call.
pub trait Serve: Send + Sync + 'static {
    /// Takes a call. Never waits; what comes of it is told by the replies. `None` means
    /// "not started": nothing was done, and the caller may send it elsewhere.
    fn serve(&self, call: Bytes) -> Option<Box<dyn Replies>>;
}

/// What comes of a call. Dropping it tells the callee that its caller is gone.
pub trait Replies: Send {
    /// The next reply; `None` after the last.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>>;
}

/// Where a session is.
#[derive(Clone, Debug)]
pub enum Whereabouts {
    /// The record names this node (this process).
    Here,
    /// The record names another node, which holds its lease.
    There(Peer),
    /// The record names a node that is gone, or released it.
    Ownerless,
    /// There is no such session, or it has ended.
    Unknown,
}

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached; the same may succeed later.
    #[error("the store is unavailable")]
    Store(#[source] store::Error),
    /// The peer link cannot listen there.
    #[error("the peer link cannot listen on {address}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A setting is wrong; the text names it and the remedy.
    #[error("{0}")]
    Settings(String),
}

/// Why a call has no further reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The callee did nothing; the call may be sent again.
    #[error("the call was not started")]
    NotStarted,
    /// The link broke, or the callee went, after the call may have begun.
    #[error("the link to the node was lost")]
    Lost,
}

/// This node's place among the others. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {}

impl Cluster {
    /// Takes up a lease, listens for peers, and keeps doing both until [`Cluster::leave`].
    pub async fn join(
        _settings: Settings,
        _store: Arc<dyn Store>,
        _serve: Arc<dyn Serve>,
    ) -> Result<Self, Error> {
        Ok(Self {})
    }

    /// This process.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(0)
    }

    /// May this node act as an owner now? No round trip.
    pub fn may_act(&self) -> bool {
        true
    }

    /// Where a session is. Answers are kept for a moment; `fresh` reads the record again.
    pub async fn locate(&self, _session: &SessionId, _fresh: bool) -> Result<Whereabouts, Error> {
        Ok(Whereabouts::Unknown)
    }

    /// Gives the lease up and closes every link.
    pub async fn leave(&self) {}
}

/// Another node.
#[derive(Clone, Debug)]
pub struct Peer {}

impl Peer {
    /// Sends a call. Never waits; replies, and failure, are told by what is returned.
    pub fn call(&self, _call: Bytes) -> Calling {
        Calling {}
    }
}

/// A call under way. Dropping it tells the callee that its caller is gone.
pub struct Calling {}

impl Calling {
    /// The next reply; `None` after the last.
    pub fn poll_next(&mut self, _context: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        Poll::Ready(Some(Err(CallError::NotStarted)))
    }
}
