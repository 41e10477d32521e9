//! The settings of one program that is a tenant's MCP server.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cgroup::CgroupLimits;
use super::reason::command_for_log;
use crate::guard::{Confinement, ResourceLimits};
use crate::sandbox::{Network, Protection, Protections, RunAs, Sandbox};

/// How long a start may take if nothing is set.
const START: Duration = Duration::from_secs(60);

/// Environment variables by name. Their values may be secrets, so `Debug` has the names only.
#[derive(Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Variables(BTreeMap<String, String>);

impl Deref for Variables {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Variables {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl From<BTreeMap<String, String>> for Variables {
    fn from(variables: BTreeMap<String, String>) -> Self {
        Self(variables)
    }
}

impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A program that is a tenant's MCP server.
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StdioSettings {
    /// The program: a path, or a name that is looked up in `PATH`. No shell expands it.
    pub command: String,
    /// The arguments of the program. No shell expands them.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables, in addition to the inherited ones. They override those.
    #[serde(default)]
    pub env: Variables,
    /// The working directory; the node's own by default.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// How long a start may take until the server answers `initialize`, in seconds; then the process
    /// ends. If not set, 60; a program that reads settings sets its own default.
    #[serde(default)]
    pub start_secs: Option<u64>,
    /// How long a server whose client gave up during its start is kept after its answer, in seconds,
    /// for a client with the same principal that sends the same `initialize`. 0: it ends with its
    /// session, also during the start.
    #[serde(default = "default_start_kept_secs")]
    pub start_kept_secs: u64,
    /// How many processes are started in advance and wait for a session. They count among the
    /// tenant's.
    #[serde(default)]
    pub warm: usize,
    /// Whether a client is told the last lines of stderr and the names in the settings when a start
    /// fails. If not set, it is not; a program that reads settings sets its own default.
    #[serde(default)]
    pub explain: Option<bool>,
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
    /// The private home directory of the tenant's servers, if they have one; set by the program that
    /// reads the settings, which also creates it. Caches of downloaded servers are in it.
    #[serde(skip)]
    pub home: Option<PathBuf>,
    /// Whether the server keeps nothing between two requests, so that sessions leave it when the backend
    /// is retired; set by the program that reads the settings.
    #[serde(skip)]
    pub stateless: bool,
    /// If not empty, the server can write only below these paths, in its private home directory, and
    /// in the folder of temporary files.
    #[serde(default)]
    pub write_paths: Vec<PathBuf>,
}

/// Prints no argument and no value of a variable: they may be secret.
impl fmt::Debug for StdioSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StdioSettings")
            .field("command", &command_for_log(self))
            .field("args", &self.args.len())
            .field("env", &self.env.keys())
            .finish_non_exhaustive()
    }
}

fn default_processes_max() -> u64 {
    512
}

fn default_start_kept_secs() -> u64 {
    60
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
            env: Variables::default(),
            cwd: None,
            start_secs: None,
            start_kept_secs: default_start_kept_secs(),
            warm: 0,
            explain: None,
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
            home: None,
            stateless: false,
            write_paths: Vec::new(),
        }
    }

    pub(super) fn start(&self) -> Duration {
        self.start_secs.map_or(START, Duration::from_secs)
    }

    pub(super) fn start_kept(&self) -> Duration {
        Duration::from_secs(self.start_kept_secs)
    }

    pub(super) fn explains(&self) -> bool {
        self.explain.unwrap_or_default()
    }

    pub(super) fn stop_grace(&self) -> Duration {
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

    pub(super) fn bounds(&self, protections: &Protections) -> ResourceLimits {
        let has_processes_max = self.has(Protection::ProcessesMax, protections);
        ResourceLimits {
            memory_bytes: self.memory_bytes_max,
            files: self.files_max,
            cpu_secs: self.cpu_secs_max,
            processes: has_processes_max.then_some(self.processes_max),
        }
    }

    /// Whether the maximum number of processes is the one that every server has by default.
    pub fn has_default_processes_max(&self) -> bool {
        self.processes_max == default_processes_max()
    }

    pub(super) fn confinement(&self, protections: &Protections) -> Confinement {
        let has = |protection| self.has(protection, protections);
        Confinement {
            namespaces: has(Protection::PidNamespace),
            own_proc: has(Protection::OwnProc),
            kernel_files: has(Protection::KernelFiles),
            no_capabilities: has(Protection::NoCapabilities),
            no_new_privs: has(Protection::NoNewPrivs),
            own_network: has(Protection::Network),
            write_paths: has(Protection::WriteList)
                .then(|| self.write_paths.iter().chain(&self.home).cloned().collect()),
            filter_calls: has(Protection::CallFilter),
            // The path is known when the cgroup is created.
            cgroup: None,
            user: self.run_as.as_ref().map(RunAs::for_guard),
            // Without a user of its own the node enters it.
            cwd: self.run_as.as_ref().and(self.cwd.clone()),
        }
    }

    pub(super) fn cgroup_limits(&self) -> CgroupLimits {
        CgroupLimits {
            memory_bytes: self.total_memory_bytes_max,
            processes: Some(self.processes_max),
            cpu_percent: self.cpu_percent_max,
        }
    }

    pub(super) fn has(&self, protection: Protection, protections: &Protections) -> bool {
        self.asks_for(protection) && protections.grants(protection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_printed() {
        let mut settings = StdioSettings::new("a-server", ["--token", "hunter2"]);
        settings.env.insert("API_KEY".into(), "hunter2".into());
        let printed = format!("{settings:?}");
        assert!(printed.contains("API_KEY") && !printed.contains("hunter2"), "{printed}");
    }
}
