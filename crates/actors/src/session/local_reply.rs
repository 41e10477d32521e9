//! The receiving end of a reply from a session on this node.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::SessionHandle;
use crate::reply::ReplyQueue;
use crate::{HandshakeSummary, ReplyEvent};

/// The receiving end of a reply from a session on this node. Dropping it notifies the session that
/// the client has left.
#[derive(Debug)]
pub(crate) struct LocalReply {
    queue: Arc<ReplyQueue>,
    handle: Arc<SessionHandle>,
}

impl LocalReply {
    pub(crate) fn new(queue: Arc<ReplyQueue>, handle: Arc<SessionHandle>) -> Self {
        Self { queue, handle }
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<ReplyEvent>> {
        self.queue.poll_next(context, &self.handle.share)
    }

    /// What logs say of the session's handshake; `None` before it.
    pub(crate) fn handshake(&self) -> Option<&HandshakeSummary> {
        self.handle.handshake()
    }

    /// The name of the tenant.
    pub(crate) fn tenant(&self) -> &Arc<str> {
        self.handle.tenant()
    }

    /// Whether the last event of the reply was taken.
    pub(crate) fn is_over(&self) -> bool {
        self.queue.is_over()
    }
}

impl Drop for LocalReply {
    fn drop(&mut self) {
        if self.queue.leave(&self.handle.share) {
            self.handle.reader_left();
        }
    }
}
