//! The reply to one request of a client.

use std::sync::Arc;
use std::task::{Context, Poll};

use budget::{GRANULE_BYTES, Held};
use conversation::Frame;
use ownership::{ReplyEvent, SessionRequest};
use protocol::SessionId;

use crate::node::Node;
use crate::reply::KeepAliveTimer;
use crate::routing::{Owner, RoutedRequest};
use crate::session_bytes::charge;
use crate::{Caller, HandshakeSummary};

/// The reply to one request of a client, whichever node the session is on: one answer, or a stream
/// of events. Bounded: the stream is aborted if its reader falls behind. Dropping it notifies the
/// session that the client is gone.
///
/// An idle stream yields [`Frame::KeepAlive`] every `keepalive_secs`, so that no proxy closes the
/// client's connection as idle (SSE-13). The node of the connection sends it, wherever the session
/// is and whether or not it has an owner.
#[derive(Debug)]
pub struct ReplyStream {
    routed: Box<RoutedRequest>,
    keepalive_secs: u64,
    /// Set once the reply is a stream.
    keep_alive: Option<Box<KeepAliveTimer>>,
}

/// A session that was just created, and the reply to its first connection.
pub struct Opened {
    /// The new session's id.
    pub session: SessionId,
    /// The reply.
    pub replies: ReplyStream,
}

impl ReplyStream {
    /// The reply to a request for a session that was created before.
    pub(crate) fn of_request(node: &Arc<Node>, caller: &Caller, request: SessionRequest) -> Self {
        Self::new(node, RoutedRequest::begin_request(node, caller, request))
    }

    fn new(node: &Node, routed: RoutedRequest) -> Self {
        let keepalive_secs = node.context.settings.session.keepalive_secs.max(1);
        Self { routed: Box::new(routed), keepalive_secs, keep_alive: None }
    }

    /// The next event; `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Option<ReplyEvent> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The name of the node that owns the session; `None` for this node. Only for logs.
    pub fn owner_name(&self) -> Option<Arc<str>> {
        self.routed.owner_name()
    }

    /// What logs say of the session's handshake; `None` before the first event, and if the owner
    /// runs the previous program.
    pub fn handshake(&self) -> Option<&HandshakeSummary> {
        self.routed.handshake()
    }

    /// As `next`, for hand-written futures.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<ReplyEvent>> {
        let event = self.routed.poll_next(context);
        if matches!(event, Poll::Ready(Some(ReplyEvent::Open { .. }))) {
            self.start_keep_alive();
        }
        match (&mut self.keep_alive, event) {
            (Some(timer), Poll::Pending) => {
                timer.poll(context).map(|()| Some(ReplyEvent::Frame(Frame::KeepAlive)))
            }
            (Some(timer), event) => {
                timer.note_event();
                event
            }
            (None, event) => event,
        }
    }

    /// Whether there is a next event, or the end. If not, the task is woken when there is.
    pub fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_next(context).map(|event| self.routed.put_back(event))
    }

    /// Charges bytes of the reply that its client has not read yet to the share of the tenant, until
    /// the returned value is dropped. `None` for bytes that are too few to count.
    pub fn charge(&self, bytes: usize) -> Option<Held> {
        if bytes < GRANULE_BYTES { None } else { charge(bytes, &self.routed.share()) }
    }

    /// The name of the tenant.
    pub fn tenant(&self) -> &Arc<str> {
        self.routed.tenant()
    }

    fn start_keep_alive(&mut self) {
        self.keep_alive = Some(Box::new(KeepAliveTimer::new(self.keepalive_secs)));
    }
}

impl Opened {
    /// The reply to the `initialize` of a new session; `owner` has the request.
    pub(crate) fn of_initialize(
        node: &Arc<Node>,
        caller: Caller,
        request: SessionRequest,
        owner: Owner,
    ) -> Self {
        let session = caller.session.clone();
        let routed = RoutedRequest::of_new_session(node, caller, request, owner);
        Self { session, replies: ReplyStream::new(node, routed) }
    }

    /// The connection of a duplex session at `owner`. Its stream is open from the start.
    pub(crate) fn of_duplex(node: &Arc<Node>, caller: Caller, owner: Owner) -> Self {
        let session = caller.session.clone();
        let mut replies = ReplyStream::new(node, RoutedRequest::of_duplex(node, caller, owner));
        replies.start_keep_alive();
        Self { session, replies }
    }
}
