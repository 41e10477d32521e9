//! MCP servers that are programs, with messages over their standard streams.
//!
//! Every session has a process of its own, in its own process group. The process inherits only
//! the variables in [`INHERITED`] and the configured ones. When the session, the process or the
//! node ends, all descendants of the process are killed; see [`crate::guard`]. This module
//! converts lines to messages and back, and does not interpret them.

mod child;
mod children;
mod process;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use protocol::SessionId;
use serde::{Deserialize, Serialize};

pub use self::children::{Children, ChildrenSettings, INHERITED};
use crate::guard::ResourceLimits;
use crate::{Backend, Link, LinkLimits};

/// The longest pause before the next start of a server that keeps failing.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A program that is a tenant's MCP server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StdioSettings {
    /// The program: a path, or a name that is looked up in `PATH`. No shell expands it.
    pub command: String,
    /// The arguments of the program. No shell expands them.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables, in addition to the inherited ones. They override those.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The working directory; the node's own by default.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// How long the process may take to exit after its input is closed, and again after
    /// `SIGTERM`. Then it is killed.
    #[serde(default = "default_stop_grace_ms")]
    pub stop_grace_ms: u64,
    /// Maximum length of a line that it writes; a longer one ends the link.
    #[serde(default = "default_line_bytes_max")]
    pub line_bytes_max: usize,
    /// Maximum private memory of each of its processes; further allocations fail. With a guard
    /// the limit applies from the first instruction. Without one, as in a program that embeds the
    /// library, it is set shortly after the start.
    #[serde(default)]
    pub memory_bytes_max: Option<u64>,
    /// Maximum number of open files of each of its processes.
    #[serde(default)]
    pub files_max: Option<u64>,
    /// Maximum processor time of each of its processes, in seconds. After it the kernel kills
    /// the process.
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
    /// Settings with this command and these arguments, and defaults for the rest.
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

    fn bounds(&self) -> ResourceLimits {
        ResourceLimits {
            memory_bytes: self.memory_bytes_max,
            files: self.files_max,
            cpu_secs: self.cpu_secs_max,
        }
    }
}

/// Starts a process for every session that opens a link.
#[derive(Clone)]
pub struct StdioBackend(Arc<Program>);

/// The state that all processes of a backend share.
struct Program {
    /// The name of the backend in logs.
    name: String,
    settings: StdioSettings,
    children: Children,
    /// How many processes have exited by themselves since one last sent a message.
    failures: AtomicU32,
}

impl StdioBackend {
    /// Creates a backend whose processes are counted in `children`. `name` is for logs only.
    pub fn new(name: impl Into<String>, settings: StdioSettings, children: Children) -> Self {
        let (name, failures) = (name.into(), AtomicU32::new(0));
        Self(Arc::new(Program { name, settings, children, failures }))
    }
}

impl Backend for StdioBackend {
    fn open(&self, session: &SessionId) -> Link {
        let (link, end) = Link::pair(LinkLimits::default());
        tokio::spawn(process::host_process(Arc::clone(&self.0), session.clone(), end));
        link
    }
}

impl Program {
    /// The pause before the next start. It doubles with each process that exited by itself since
    /// one last sent a message.
    fn pause(&self) -> Duration {
        match self.failures.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            failures => (Duration::from_millis(50) * (1 << failures.min(10))).min(PAUSE_MAX),
        }
    }

    fn count_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    fn reset_failures(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }
}
