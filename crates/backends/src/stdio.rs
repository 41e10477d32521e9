//! MCP servers that are programs, with messages over their standard streams.
//!
//! Every session has a process of its own, in a session and process group of the kernel of its own.
//! A process may be started before its session, and a start may outlive the session that caused it;
//! see `start.rs`. The
//! process inherits only the variables in [`INHERITED`] and [`INHERITED_FOR_DOWNLOADS`], and the
//! configured ones. When the session, the process or the node ends, all descendants of the process
//! are killed; see [`crate::guard`]. The modules below convert lines to messages and back, and do not
//! interpret them.

pub(crate) mod cgroup;
mod child;
mod children;
mod environment;
mod in_use;
mod junk;
mod lines;
mod opening;
mod process;
mod program;
mod reason;
mod settings;
mod spares;
mod start;
mod stderr;
mod waiting;

use std::sync::Arc;

use protocol::SessionId;

pub use self::cgroup::prepare as prepare_cgroups;
pub use self::children::{Children, ChildrenSettings};
pub use self::environment::{INHERITED, INHERITED_FOR_DOWNLOADS, withheld};
use self::program::Program;
pub use self::program::StdioShares;
pub use self::settings::StdioSettings;
use self::waiting::Attachment;
use crate::sandbox::Protections;
pub use crate::sandbox::RunAs;
use crate::{Backend, Link, LinkLimits};

/// Starts a process for every session that opens a link.
#[derive(Clone)]
pub struct StdioBackend(Arc<Program>);

impl StdioBackend {
    /// Creates a backend whose processes are counted in `children`. They get those of the
    /// `protections` that the settings ask for. `name` is for logs only.
    pub fn new(
        name: impl Into<String>,
        settings: StdioSettings,
        protections: Protections,
        children: Children,
    ) -> Self {
        Self::sharing(name, settings, protections, children, StdioShares::unlimited())
    }

    /// As [`Self::new`], within the shares of the backend's tenant.
    pub fn sharing(
        name: impl Into<String>,
        settings: StdioSettings,
        protections: Protections,
        children: Children,
        shares: StdioShares,
    ) -> Self {
        Self(Arc::new(Program::new(name.into(), settings, protections, children, shares)))
    }
}

impl StdioBackend {
    fn open_link(&self, session: &SessionId, principal: Option<[u8; 32]>) -> Link {
        let (link, end) = Link::pair(LinkLimits::default());
        let session = Attachment { session: session.clone(), first: None, is_up: false, end };
        tokio::spawn(process::open_link(Arc::clone(&self.0), principal, session));
        link
    }
}

impl Backend for StdioBackend {
    /// The process ends with the session, also during its start.
    fn open(&self, session: &SessionId) -> Link {
        self.open_link(session, None)
    }

    fn open_for(&self, session: &SessionId, principal: &[u8; 32]) -> Link {
        self.open_link(session, Some(*principal))
    }

    fn start_in_advance(&self) {
        if self.0.settings.warm > 0 {
            tokio::spawn(spares::keep(Arc::downgrade(&self.0)));
        }
    }
}
