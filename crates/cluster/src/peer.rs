//! A peer, the calls to it, and the location of a session.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use ownership::location::Cause;
use peering::CallError;
use store::{Incarnation, Record};

use crate::dial;
use crate::link::PeerLink;
use crate::node::MemberNode;

/// Another node of the cluster.
#[derive(Clone)]
pub struct Peer {
    pub(crate) node: Arc<MemberNode>,
    pub(crate) link: Arc<PeerLink>,
}

impl Peer {
    /// The incarnation of the peer.
    pub fn incarnation(&self) -> Incarnation {
        self.link.incarnation
    }

    /// The newest payload version that this node and the peer read; `None` if a link to the peer
    /// was never established.
    pub fn payload_version(&self) -> Option<u32> {
        self.link.payload_version.get().copied()
    }

    /// Sends a call. Never waits; the returned value yields the replies or the failure.
    pub fn call(&self, call: Bytes) -> ForwardedCall {
        if self.node.closing.is_cancelled() {
            return ForwardedCall(Err(Some(CallError::NotStarted)));
        }
        let (id, connect) = match self.link.calls.open(call) {
            Ok(opened) => opened,
            Err(error) => {
                return ForwardedCall(Err(Some(error)));
            }
        };
        let calling = ForwardedCall(Ok(OpenCall { link: self.link.clone(), id }));
        if connect {
            dial::connect(&self.node, &self.link);
        }
        calling
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({} at {})", self.link.incarnation, self.link.address)
    }
}

/// A call in progress. Dropping it cancels the call at the callee.
pub struct ForwardedCall(Result<OpenCall, Option<CallError>>);

impl ForwardedCall {
    /// Polls for the next reply; `None` after the last one, or after an error.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, CallError>>> {
        match &mut self.0 {
            Ok(open_call) => open_call.link.calls.poll_reply(open_call.id, context),
            Err(error) => Poll::Ready(error.take().map(Err)),
        }
    }

    /// Whether the call is known to have no further replies.
    pub fn is_over(&self) -> bool {
        match &self.0 {
            Ok(open_call) => open_call.link.calls.is_over(open_call.id),
            Err(error) => error.is_none(),
        }
    }
}

/// A call that is registered with a link.
struct OpenCall {
    link: Arc<PeerLink>,
    id: u64,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.link.calls.forget(self.id);
    }
}

/// The location of a session.
#[derive(Clone, Debug)]
pub enum SessionLocation {
    /// The record names this incarnation. A node that does not have the session claims it from
    /// itself.
    Here(Box<Record>),
    /// The record names another node, which holds its lease.
    There(Peer),
    /// The record names a node that is gone, or that released the session. [`Cluster::claim`] it.
    Ownerless(Box<Record>, Cause),
    /// The session has ended: this is its tombstone.
    Ended(Box<Record>),
    /// The store has no record of the session.
    Unknown,
}
