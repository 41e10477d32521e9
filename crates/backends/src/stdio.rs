//! MCP servers that are programs, with messages over their standard streams.
//!
//! Every session has a process of its own, which leads a process group.
//! A process may be started before its session, and a start may outlive the session that caused it;
//! see `start.rs`. The
//! process inherits only the variables in [`INHERITED`] and [`INHERITED_FOR_DOWNLOADS`], and the
//! configured ones. When the session, the process or the node ends, all descendants of the process
//! are killed; see [`crate::guard`]. The modules below convert lines to messages and back, and do not
//! interpret them.

pub(crate) mod cgroup;
mod child;
mod children;
mod core_use;
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
mod start_turns;
mod stderr;
mod waiting;

use std::sync::Arc;

use protocol::SessionId;

pub use self::cgroup::prepare as prepare_cgroups;
pub use self::children::{
    CHILDREN_MAX, CHILDREN_NICE_MAX, Children, ChildrenSettings, LimitReached, ProcessLimit,
    TakenProcess,
};
pub use self::environment::{INHERITED, INHERITED_FOR_DOWNLOADS, withheld};
use self::program::Program;
pub use self::program::StdioShares;
pub use self::settings::{StdioSettings, Variables};
use self::waiting::Attachment;
use crate::sandbox::Protections;
pub use crate::sandbox::RunAs;
use crate::{Backend, Link, LinkLimits};

/// Starts a process for every session that opens a link.
#[derive(Clone)]
pub struct StdioBackend(Arc<InService>);

/// A program that can get sessions. Each task of a process has the program as well, so the end of the
/// last backend must be noticed here, not by the program's own.
struct InService(Arc<Program>);

impl Drop for InService {
    fn drop(&mut self) {
        self.0.retire();
    }
}

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
        let program = Program::new(name.into(), settings, protections, children, shares);
        Self(Arc::new(InService(Arc::new(program))))
    }

    fn program(&self) -> &Arc<Program> {
        &self.0.0
    }
}

impl StdioBackend {
    fn open_link(&self, session: &SessionId, principal: Option<[u8; 32]>) -> Link {
        let (link, end) = Link::pair(LinkLimits::default());
        let session = Attachment { session: session.clone(), first: None, is_up: false, end };
        tokio::spawn(process::open_link(Arc::clone(self.program()), principal, session));
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
        let program = self.program();
        if program.settings.warm > 0 && program.begins_to_keep_spares() {
            tokio::spawn(spares::keep(Arc::clone(program)));
        }
    }

    fn retire(&self) {
        self.program().retire();
    }
}
