//! MCP servers that are reached over HTTP.
//!
//! Every link is a session of its own with the server. The session's rules are those of
//! [`upstream::Machine`]; this module performs its effects. The end of the link ends the session at the
//! server.

mod drive;

use protocol::SessionId;
pub use upstream::{HttpSettings, IDLE_MAX};

use crate::{Backend, Link, LinkLimits};

/// Reaches one server for every session that opens a link.
#[derive(Clone)]
pub struct HttpBackend(upstream::Client);

impl HttpBackend {
    /// Creates a backend with these settings, or says everything that is wrong with them. `name` is for
    /// logs only. Opens no connection.
    pub fn new(name: impl Into<String>, settings: &HttpSettings) -> Result<Self, Vec<String>> {
        Ok(Self(upstream::Client::new(name, settings)?))
    }
}

impl Backend for HttpBackend {
    fn open(&self, _session: &SessionId) -> Link {
        let (link, end) = Link::pair(LinkLimits::default());
        tokio::spawn(drive::run(self.0.clone(), end));
        link
    }
}
