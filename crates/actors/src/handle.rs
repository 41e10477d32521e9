//! The way into the node's sessions.

use std::sync::Arc;

use backends::Backends;
use conversation::{Limits, Refusal};
use protocol::{Body, Mirrored, Request, SessionId};
use serde::{Deserialize, Serialize};
use tenants::{Principal, Tenant};

use crate::Inflow;

/// Bounds of the node's sessions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Settings {
    /// The bounds of each session.
    #[serde(flatten)]
    pub session: Limits,
}

/// Who comes to which session.
#[derive(Clone, Debug)]
pub struct Visit {
    /// Whose endpoint was used.
    pub tenant: Arc<Tenant>,
    /// Who is asking; another principal's session is an unknown one.
    pub principal: Principal,
    /// Which session is meant.
    pub session: SessionId,
}

/// A session that was just made, and what its first connection is told.
pub struct Opened {
    /// The new session's id.
    pub session: SessionId,
    /// What the connection is told.
    pub inflow: Inflow,
}

/// The node's sessions. Cheap to clone.
#[derive(Clone)]
pub struct Handle {}

impl Handle {
    /// No session yet.
    pub fn new(_settings: Settings, _store: Arc<dyn store::Store>, _backends: Backends) -> Self {
        Self {}
    }

    /// Makes a session of Streamable HTTP; `request` is its `initialize`. The session
    /// lives on the calling thread's arbiter.
    pub async fn initialize(
        &self,
        _tenant: &Arc<Tenant>,
        _principal: &Principal,
        _request: Request,
        _mirrored: Option<Box<Mirrored>>,
    ) -> Result<Opened, Refusal> {
        Err(Refusal::Stopping)
    }

    /// Makes a session whose every message goes to one connection (HTTP+SSE, stdio):
    /// the returned one, open from the start. It ends with that connection.
    pub async fn connect(
        &self,
        _tenant: &Arc<Tenant>,
        _principal: &Principal,
    ) -> Result<Opened, Refusal> {
        Err(Refusal::Stopping)
    }

    /// Brings what a client posted.
    pub async fn post(
        &self,
        _visit: &Visit,
        _body: Body,
        _mirrored: Option<Box<Mirrored>>,
    ) -> Result<Inflow, Refusal> {
        Err(Refusal::UnknownSession)
    }

    /// Opens a GET stream, after an event where `after` (`Last-Event-ID`) names one.
    pub async fn listen(&self, _visit: &Visit, _after: Option<String>) -> Result<Inflow, Refusal> {
        Err(Refusal::UnknownSession)
    }

    /// Ends a session.
    pub async fn delete(&self, _visit: &Visit) -> Result<Inflow, Refusal> {
        Err(Refusal::UnknownSession)
    }

    /// How many sessions live here now.
    pub fn sessions(&self) -> usize {
        0
    }

    /// Refuses new sessions, ends every session in order, and returns when all are
    /// gone or `grace` is over.
    pub async fn stop(&self, _grace: std::time::Duration) {}
}
