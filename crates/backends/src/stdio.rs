//! MCP servers that are programs, spoken to over their standard streams.
//!
//! Every session gets a process of its own, in its own process group, with an
//! environment that is cleared but for [`INHERITED`] and what is configured. Whatever
//! ends first (the session, the process, the node), nothing of it stays alive; see
//! [`crate::guard`] for how. The protocol of MCP is not looked at here: lines in,
//! messages out, and the other way round.

mod child;
mod children;
mod talk;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use protocol::SessionId;
use serde::{Deserialize, Serialize};

pub use self::children::{Children, ChildrenSettings, INHERITED};
use crate::guard::Bounds;
use crate::{Backend, Link, LinkLimits};

/// The longest pause before a server that keeps failing is started again.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A program that is a tenant's MCP server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StdioSettings {
    /// The program: a path, or a name that is looked up in `PATH`. No shell reads it.
    pub command: String,
    /// Its arguments, as they are.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its environment, beside and over what it inherits from the node.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where it runs; the node's own directory by default.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// How long it may take to go when its input is closed, and again after `SIGTERM`;
    /// then it is killed.
    #[serde(default = "default_stop_grace_ms")]
    pub stop_grace_ms: u64,
    /// Longest line it may write; a longer one ends the link.
    #[serde(default = "default_line_bytes_max")]
    pub line_bytes_max: usize,
    /// Most private memory that each of its processes may have; further allocations
    /// fail. It holds from the first instruction under a guard, as the program has one; where a
    /// program that embeds the library has none, from a moment after the start.
    #[serde(default)]
    pub memory_bytes_max: Option<u64>,
    /// Most files that each of its processes may have open.
    #[serde(default)]
    pub files_max: Option<u64>,
    /// Most processor time that each of its processes may use, in seconds; then the
    /// kernel kills it.
    #[serde(default)]
    pub cpu_secs_max: Option<u64>,
}

fn default_stop_grace_ms() -> u64 {
    2_000
}

fn default_line_bytes_max() -> usize {
    16 << 20
}

impl StdioSettings {
    /// A command and its arguments, all else by default.
    pub fn new(
        command: impl Into<String>,
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            command: command.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            cwd: None,
            stop_grace_ms: default_stop_grace_ms(),
            line_bytes_max: default_line_bytes_max(),
            memory_bytes_max: None,
            files_max: None,
            cpu_secs_max: None,
        }
    }

    fn stop_grace(&self) -> Duration {
        Duration::from_millis(self.stop_grace_ms)
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            memory_bytes: self.memory_bytes_max,
            files: self.files_max,
            cpu_secs: self.cpu_secs_max,
        }
    }
}

/// Starts a process for every session that opens a link.
#[derive(Clone)]
pub struct StdioBackend(Arc<Program>);

/// What every process of a backend has in common.
struct Program {
    /// Names the backend in logs.
    name: String,
    settings: StdioSettings,
    children: Children,
    /// How many processes have ended on their own since one last said something.
    failures: AtomicU32,
}

impl StdioBackend {
    /// A backend whose processes are among `children`. `name` is for logs only.
    pub fn new(name: impl Into<String>, settings: StdioSettings, children: Children) -> Self {
        let (name, failures) = (name.into(), AtomicU32::new(0));
        Self(Arc::new(Program { name, settings, children, failures }))
    }
}

impl Backend for StdioBackend {
    fn open(&self, session: &SessionId) -> Link {
        let (link, end) = Link::pair(LinkLimits::default());
        tokio::spawn(talk::host(Arc::clone(&self.0), session.clone(), end));
        link
    }
}

impl Program {
    /// How long to wait before another start: twice as long for each process that ended
    /// on its own since one last said something.
    fn pause(&self) -> Duration {
        match self.failures.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            failures => (Duration::from_millis(50) * (1 << failures.min(10))).min(PAUSE_MAX),
        }
    }

    fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    fn worked(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }
}
