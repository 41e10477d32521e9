//! The pipe between a session and a tenant's server.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use protocol::{Message, RequestId, SessionId};

/// A configured MCP server of a tenant.
pub trait Backend: Send + Sync + 'static {
    /// Opens a link for a session, from within a tokio runtime. Never waits and never
    /// fails: what goes wrong is told by the link. Whoever drops both halves, also
    /// before the link is up, leaves nothing behind.
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

/// Both halves of a link.
pub struct Link {
    /// Takes what is said to the server.
    pub sender: LinkSender,
    /// Gives what the server says.
    pub events: LinkEvents,
}

/// What a link tells. `Up` comes first, at most once; `Down` last, at most once.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// The server can be spoken to.
    Up,
    /// The server said this.
    Said {
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
pub struct LinkSender {}

impl LinkSender {
    /// Hands over one message. Never waits.
    pub fn send(&self, _message: Message) -> Result<(), SendError> {
        Err(SendError::Down)
    }
}

/// The half that listens to the server.
pub struct LinkEvents {}

impl LinkEvents {
    /// The next event; `None` when nothing more will come.
    pub fn poll_next(&mut self, _context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        Poll::Ready(None)
    }
}
