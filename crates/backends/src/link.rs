//! The pipe between a session and a tenant's server.
//!
//! This module does not depend on the kind of server: an implementation either drives
//! the [`ServerEnd`] that [`Link::pair`] returns, or the task that polls the
//! [`LinkEvents`] drives it in place. Neither half ever waits for the other side.

mod pair;

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use protocol::{Message, RequestId, SessionId};

pub(crate) use self::pair::EventReceiver;
pub use self::pair::{EventSender, Gone, ServerEnd};

/// A configured MCP server of a tenant.
pub trait Backend: Send + Sync + 'static {
    /// Opens a link for a session, from within a tokio runtime. Never waits and never
    /// fails: the link reports errors. Once both halves are dropped, also before the
    /// link is up, nothing that the link started is left.
    fn open(&self, session: &SessionId) -> Link;
}

/// Every backend of the node, by tenant.
#[derive(Clone, Default)]
pub struct Backends(Arc<HashMap<Arc<str>, Arc<dyn Backend>>>);

impl Backends {
    /// These backends.
    pub fn new(backends: impl IntoIterator<Item = (Arc<str>, Arc<dyn Backend>)>) -> Self {
        Self(Arc::new(backends.into_iter().collect()))
    }

    /// The backend of the tenant.
    pub fn of(&self, tenant: &str) -> Option<&Arc<dyn Backend>> {
        self.0.get(tenant)
    }
}

/// Bounds of a link, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Most messages waiting. At the bound the session's `send` fails with
    /// [`SendError::Full`], and the server's [`EventSender::send`] waits.
    pub messages_max: usize,
    /// Most bytes waiting, with the same consequence. A single message may be larger:
    /// it is taken when nothing else waits.
    pub bytes_max: usize,
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self { messages_max: 256, bytes_max: 8 << 20 }
    }
}

/// Both halves of a link.
pub struct Link {
    /// Takes what is said to the server.
    pub sender: LinkSender,
    /// Gives what the server says.
    pub events: LinkEvents,
}

impl Link {
    /// A link and what drives it from the server's side.
    pub fn pair(limits: LinkLimits) -> (Self, ServerEnd) {
        let (sender, receiver, end) = pair::pair(limits);
        (Self { sender: LinkSender(sender), events: LinkEvents(Source::Queue(receiver)) }, end)
    }

    /// A link whose server runs inside the session's own polling: `engine` makes it,
    /// from its end of the link and the session's receiver.
    pub(crate) fn in_place(
        limits: LinkLimits,
        engine: impl FnOnce(ServerEnd, EventReceiver) -> Box<dyn Engine>,
    ) -> Self {
        let (sender, receiver, end) = pair::pair(limits);
        let events = LinkEvents(Source::InPlace(engine(end, receiver)));
        Self { sender: LinkSender(sender), events }
    }
}

/// What a link tells. `Up` comes first, at most once; `Down` last, at most once.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// The server can be spoken to.
    Up,
    /// The server said this.
    Message {
        /// The message.
        message: Message,
        /// The request of ours it belongs to, where the link knows.
        about: Option<RequestId>,
    },
    /// The server is gone or could not be started. The reason is fit for a client to read.
    Down {
        /// No secret, no path, no payload.
        reason: String,
    },
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The server does not keep up; the queue to it is full.
    #[error("the server does not keep up")]
    Full,
    /// The link is down.
    #[error("the link is down")]
    Down,
}

/// The half that speaks to the server.
pub struct LinkSender(pair::SessionSender);

impl LinkSender {
    /// Hands over one message. Never waits. What is sent before `Up` is kept for the
    /// server, within the link's bounds.
    pub fn send(&self, message: Message) -> Result<(), SendError> {
        self.0.send(message)
    }
}

/// The half that listens to the server.
pub struct LinkEvents(Source);

enum Source {
    /// Another task drives the server.
    Queue(EventReceiver),
    /// Polling drives the server.
    InPlace(Box<dyn Engine>),
}

/// A server that runs only while it is polled.
pub(crate) trait Engine: Send {
    /// As [`LinkEvents::poll_next`].
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>>;
}

impl LinkEvents {
    /// The next event; `None` when nothing more will come, which is after `Down`.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        match &mut self.0 {
            Source::Queue(receiver) => receiver.poll_next(context),
            Source::InPlace(engine) => engine.poll_next(context),
        }
    }

    /// As `poll_next`, for callers that may wait.
    pub async fn next(&mut self) -> Option<LinkEvent> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }
}
