//! MCP servers that are programs, with messages over their standard streams.
//!
//! Every session has a process of its own, in a session and process group of the kernel of its own. The process inherits only
//! the variables in [`INHERITED`] and the configured ones. When the session, the process or the
//! node ends, all descendants of the process are killed; see [`crate::guard`]. This module
//! converts lines to messages and back, and does not interpret them.

mod cgroup;
mod child;
mod children;
mod process;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use budget::{Budget, Share};
use protocol::SessionId;
use serde::{Deserialize, Serialize};

use self::cgroup::CgroupLimits;
pub(crate) use self::cgroup::inspect as inspect_cgroups;
pub use self::cgroup::prepare as prepare_cgroups;
pub use self::children::{Children, ChildrenSettings, INHERITED};
use crate::guard::{Confinement, ResourceLimits};
use crate::sandbox::{Network, Protection, Protections, Sandbox};
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
    /// Maximum number of processes and threads of one server; a further one cannot be started.
    /// Applies only with the protection `processes_max`.
    #[serde(default = "default_processes_max")]
    pub processes_max: u64,
    /// Whether each process is separated from the node and from other servers; the node's default
    /// if not set.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
    /// The network of the server.
    #[serde(default)]
    pub network: Network,
    /// Maximum memory of all processes of one server together; at the bound the kernel ends one of
    /// them. Needs a cgroup.
    #[serde(default)]
    pub total_memory_bytes_max: Option<u64>,
    /// Maximum processor time of all processes of one server together, in percent of one
    /// processor; at the bound they wait. Needs a cgroup.
    #[serde(default)]
    pub cpu_percent_max: Option<u64>,
    /// The user whose rights the server has: a name or a number. Empty for the node's user.
    #[serde(default)]
    pub user: String,
    /// What `user` stands for on this machine; set by the program that reads the settings.
    #[serde(skip)]
    pub run_as: Option<RunAs>,
    /// If not empty, the server can write only below these paths, and in the folder of temporary
    /// files.
    #[serde(default)]
    pub write_paths: Vec<PathBuf>,
}

/// A user of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// The number of the user.
    pub uid: u32,
    /// The number of the user's group.
    pub gid: u32,
    /// The name, if the machine knows one.
    pub name: Option<String>,
    /// The home directory, if the machine knows one.
    pub home: Option<PathBuf>,
}

fn default_processes_max() -> u64 {
    512
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
            processes_max: default_processes_max(),
            sandbox: None,
            network: Network::Host,
            total_memory_bytes_max: None,
            cpu_percent_max: None,
            user: String::new(),
            run_as: None,
            write_paths: Vec::new(),
        }
    }

    /// Whether the maximum number of processes is the one that every server has by default.
    pub fn has_default_processes_max(&self) -> bool {
        self.processes_max == default_processes_max()
    }

    fn stop_grace(&self) -> Duration {
        Duration::from_millis(self.stop_grace_ms)
    }

    /// Whether the server is separated; [`Sandbox::Auto`] if nothing is set.
    pub fn sandbox(&self) -> Sandbox {
        self.sandbox.unwrap_or_default()
    }

    /// The protections that these settings ask for, beside those that every separated server has.
    pub fn asks_for(&self, protection: Protection) -> bool {
        match protection {
            _ if self.sandbox() == Sandbox::None => false,
            Protection::Network => self.network == Network::None,
            Protection::WriteList | Protection::Truncation => !self.write_paths.is_empty(),
            _ => true,
        }
    }

    fn bounds(&self, protections: &Protections) -> ResourceLimits {
        let has_processes_max = self.has(Protection::ProcessesMax, protections);
        ResourceLimits {
            memory_bytes: self.memory_bytes_max,
            files: self.files_max,
            cpu_secs: self.cpu_secs_max,
            processes: has_processes_max.then_some(self.processes_max),
        }
    }

    fn confinement(&self, protections: &Protections) -> Confinement {
        let has = |protection| self.has(protection, protections);
        Confinement {
            namespaces: has(Protection::PidNamespace),
            own_proc: has(Protection::OwnProc),
            kernel_files: has(Protection::KernelFiles),
            no_capabilities: has(Protection::NoCapabilities),
            no_new_privs: has(Protection::NoNewPrivs),
            own_network: has(Protection::Network),
            write_paths: has(Protection::WriteList).then(|| self.write_paths.clone()),
            filter_calls: has(Protection::CallFilter),
            // The path is known when the cgroup is created.
            cgroup: None,
        }
    }

    fn cgroup_limits(&self) -> CgroupLimits {
        CgroupLimits {
            memory_bytes: self.total_memory_bytes_max,
            processes: Some(self.processes_max),
            cpu_percent: self.cpu_percent_max,
        }
    }

    fn has(&self, protection: Protection, protections: &Protections) -> bool {
        self.asks_for(protection) && protections.grants(protection)
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
    /// What the machine grants to the user of the processes.
    protections: Protections,
    children: Children,
    shares: StdioShares,
    /// How many processes have exited by themselves since one last sent a message.
    failures: AtomicU32,
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
        let (name, failures) = (name.into(), AtomicU32::new(0));
        Self(Arc::new(Program { name, settings, protections, children, shares, failures }))
    }
}

/// What a tenant may take of the node for its processes.
#[derive(Clone, Debug)]
pub struct StdioShares {
    /// The processes. The link of a further one is down at once.
    pub children: Share,
    /// The bytes of lines that a process has written in part. While the share is exceeded, nothing
    /// more is read from the process; after 5 s the link ends.
    pub line_bytes: Share,
}

impl StdioShares {
    /// Shares without a bound.
    pub fn unlimited() -> Self {
        let share = Budget::unlimited().share("");
        Self { children: share.clone(), line_bytes: share }
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
