//! What operators see of a session.

use std::sync::Arc;

use crate::short_id::ShortId;

/// What operators see of a session. It has no secret of the session's client.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionSummary {
    /// The short id.
    pub id: ShortId,
    /// The tenant.
    pub tenant: Arc<str>,
    /// The first 64 bits of a keyed digest of the principal; `None` for clients of an open endpoint.
    pub principal: Option<u64>,
    /// The negotiated revision; empty before the handshake.
    pub revision: String,
    /// The name and the version that the client gave; empty if it gave none.
    pub client: String,
    /// What the session does; `None` if it did not tell in time.
    pub activity: Option<Activity>,
}

/// What a session does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    /// For how long it has been at its node, in seconds: since its creation or its take-over.
    pub at_node_secs: u64,
    /// The time since the latest request of its client, in seconds.
    pub idle_secs: u64,
    /// The requests of its client without a final response.
    pub requests: u64,
    /// The open streams.
    pub streams: u64,
}

/// Some sessions, in the order of their short ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SessionPage {
    /// The sessions.
    pub(crate) sessions: Vec<SessionSummary>,
    /// Whether further ones follow.
    pub(crate) has_more: bool,
}

/// The sessions to list.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionQuery {
    /// Those of this tenant only.
    pub tenant: Option<Arc<str>>,
    /// Those behind this one.
    pub after: Option<ShortId>,
    /// At most so many.
    pub limit: usize,
}
