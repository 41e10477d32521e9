//! What one connection of a client's is told.

use std::sync::Arc;
use std::task::{Context, Poll};

use conversation::Frame;
use ownership::ReplyEvent;

use crate::handle::Node;
use crate::remote::RoutedRequest;
use crate::session_handle::SessionHandle;
use crate::silence::Silence;
use crate::sink::Queue;

/// The receiving half of a sink, whichever node the session is on. Bounded: the stream is
/// aborted if its reader falls behind. Dropping it notifies the session that the client is gone.
///
/// An idle stream yields [`Frame::KeepAlive`] every `keepalive_secs`, so that no proxy takes the
/// client's connection for dead (SSE-13). The node that holds the connection does this, wherever
/// the session is and whether or not it has an owner.
#[derive(Debug)]
pub struct ReplyStream {
    source: Source,
    keepalive_secs: u64,
    /// Once it is a stream.
    silence: Option<Box<Silence>>,
}

#[derive(Debug)]
pub(crate) enum Source {
    /// To one session that ends with its node.
    Local(Local),
    /// To wherever the session is.
    RoutedRequest(Box<RoutedRequest>),
}

impl ReplyStream {
    /// The next thing; `None` after the last. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Option<ReplyEvent> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// As `next`, for hand-written streams.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<ReplyEvent>> {
        let event = match &mut self.source {
            Source::Local(local) => local.poll_next(context),
            Source::RoutedRequest(routed) => routed.poll_next(context),
        };
        if matches!(event, Poll::Ready(Some(ReplyEvent::Open { .. }))) && self.keepalive_secs > 0 {
            self.silence = Some(Box::new(Silence::new(self.keepalive_secs)));
        }
        match (&mut self.silence, event) {
            (Some(silence), Poll::Pending) => {
                silence.poll(context).map(|()| Some(ReplyEvent::Frame(Frame::KeepAlive)))
            }
            (Some(silence), event) => {
                silence.broken();
                event
            }
            (None, event) => event,
        }
    }

    /// `open` from the start, or once it is told so.
    pub(crate) fn new(source: impl Into<Source>, node: &Node, open: bool) -> Self {
        let keepalive_secs = node.settings.session.keepalive_secs.max(1);
        let silence = open.then(|| Box::new(Silence::new(keepalive_secs)));
        Self { source: source.into(), keepalive_secs, silence }
    }

    /// For another node, which gives its client signs of life itself.
    pub(crate) fn untimed(self) -> Self {
        Self { keepalive_secs: 0, silence: None, ..self }
    }
}

impl From<Local> for Source {
    fn from(local: Local) -> Self {
        Self::Local(local)
    }
}

impl From<RoutedRequest> for Source {
    fn from(routed: RoutedRequest) -> Self {
        Self::RoutedRequest(Box::new(routed))
    }
}

/// The receiving half of a sink whose session lives on this node.
#[derive(Debug)]
pub(crate) struct Local {
    queue: Arc<Queue>,
    handle: Arc<SessionHandle>,
}

impl Local {
    pub(crate) fn new(queue: Arc<Queue>, handle: Arc<SessionHandle>) -> Self {
        Self { queue, handle }
    }

    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<ReplyEvent>> {
        self.queue.poll_next(context)
    }

    /// Has the last thing been told?
    pub(crate) fn is_over(&self) -> bool {
        self.queue.is_over()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.queue.leave() {
            self.handle.reader_left();
        }
    }
}
