//! How tenants' servers are separated from the node and from each other, and which of these
//! protections the kernel grants.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::guard::{self, Guard, ServerUser};
use crate::metrics;
use crate::stdio::cgroup;

/// How long a probe may take; then the protections that it has not reported count as refused.
const PROBE_MAX: Duration = Duration::from_secs(10);

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

impl RunAs {
    /// The user, for a guard.
    pub(crate) fn for_guard(&self) -> ServerUser {
        ServerUser { uid: self.uid, gid: self.gid }
    }
}

/// Whether a server is separated from the node and from other servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sandbox {
    /// As far as the kernel allows it.
    #[default]
    Auto,
    /// At least with a PID namespace, a `/proc` of its own and read-only files of the kernel; otherwise
    /// the node does not start.
    Required,
    /// Not at all. The server can read and signal what the node's user can.
    None,
}

/// The network of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// The network of the node.
    #[default]
    Host,
    /// Loopback of its own, and nothing else.
    None,
}

/// One protection of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protection {
    /// User, PID and mount namespaces: the server sees and signals only its own processes, and all
    /// of them end with its session.
    PidNamespace,
    /// A `/proc` that shows only these processes.
    OwnProc,
    /// The files through which the kernel is configured are read-only.
    KernelFiles,
    /// Programs with the set-user-id bit give no privileges.
    NoNewPrivs,
    /// No capabilities, also where the node is root.
    NoCapabilities,
    /// A bound of processes and threads for each server.
    ProcessesMax,
    /// A network namespace with loopback only, for `network = "none"`.
    Network,
    /// A list of places that may be written, for `write_paths`.
    WriteList,
    /// Also the emptying of files elsewhere fails, for `write_paths`.
    Truncation,
    /// Dangerous system calls fail.
    CallFilter,
    /// A cgroup for each server, in `node.cgroup`.
    Cgroup,
}

impl Protection {
    /// All of them, in the order in which a server gets them.
    pub const ALL: [Self; 11] = [
        Self::PidNamespace,
        Self::OwnProc,
        Self::KernelFiles,
        Self::NoNewPrivs,
        Self::ProcessesMax,
        Self::Network,
        Self::NoCapabilities,
        Self::WriteList,
        Self::Truncation,
        Self::CallFilter,
        Self::Cgroup,
    ];

    /// The name in reports and in the metric.
    pub fn label(self) -> &'static str {
        match self {
            Self::PidNamespace => "pid_namespace",
            Self::OwnProc => "own_proc",
            Self::KernelFiles => "kernel_files",
            Self::NoNewPrivs => "no_new_privs",
            Self::NoCapabilities => "no_capabilities",
            Self::ProcessesMax => "processes_max",
            Self::Network => "network",
            Self::WriteList => "write_paths",
            Self::Truncation => "write_paths_truncation",
            Self::CallFilter => "call_filter",
            Self::Cgroup => "cgroup",
        }
    }

    pub(crate) fn of_label(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protection| protection.label() == label)
    }
}

/// Which protections this machine grants to servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protections {
    outcomes: BTreeMap<Protection, Result<(), String>>,
    /// The delegated directory, and the controllers that it has.
    cgroups: Option<(PathBuf, Vec<String>)>,
}

impl Protections {
    /// No protection, for this reason.
    pub fn none(reason: &str) -> Self {
        let refused = |protection| (protection, Err(reason.to_owned()));
        Self { outcomes: Protection::ALL.map(refused).into(), cgroups: None }
    }

    /// Every protection, as if the machine granted it, for a test of what follows from that.
    pub fn all() -> Self {
        let granted = Protection::ALL.map(|protection| (protection, Ok(())));
        Self { outcomes: granted.into(), cgroups: None }
    }

    /// Finds out what the kernel grants to this user, or to the node's own: starts the guard, which
    /// applies each protection to a process that does nothing else. Takes some milliseconds.
    pub fn probe(guard: Option<&Guard>, user: Option<&RunAs>) -> Self {
        let Some(guard) = guard else {
            return Self::none("this program does not call `guard::enter` first in `main`");
        };
        let mut protections = Self::none("the probe did not report it")
            .without(Protection::Cgroup, "`node.cgroup` names no delegated directory");
        match output_of_probe(guard, user) {
            Ok(output) => protections.outcomes.extend(output.lines().filter_map(guard::read_line)),
            Err(error) => return Self::none(&format!("the probe failed: {error}")),
        }
        protections
    }

    /// The same with cgroups in this directory, if servers can have some there. Changes nothing in it:
    /// a node that starts calls [`stdio::prepare_cgroups`].
    pub fn with_cgroups(mut self, folder: &Path) -> Self {
        match cgroup::inspect(folder) {
            Ok(controllers) => {
                self.outcomes.insert(Protection::Cgroup, Ok(()));
                self.cgroups = Some((folder.to_owned(), controllers));
                self
            }
            Err(reason) => self.without(Protection::Cgroup, &reason),
        }
    }

    /// Whether cgroups of servers have this controller.
    pub fn has_controller(&self, controller: &str) -> bool {
        self.cgroups.iter().any(|(_, has)| has.iter().any(|has| has == controller))
    }

    /// The directory of the servers' cgroups.
    pub(crate) fn cgroups(&self) -> Option<&Path> {
        self.cgroups.as_ref().map(|(folder, _)| folder.as_path())
    }

    /// What this machine grants to both: refusals of the other, which `user` has, are added.
    pub fn and(mut self, other: &Self, user: &str) -> Self {
        for (protection, outcome) in &other.outcomes {
            if let (Err(reason), true) = (outcome, self.grants(*protection)) {
                self = self.without(*protection, &format!("for the user {user}: {reason}"));
            }
        }
        self
    }

    /// The same without this protection.
    pub fn without(mut self, protection: Protection, reason: &str) -> Self {
        self.outcomes.insert(protection, Err(reason.to_owned()));
        self
    }

    /// Whether servers get this protection, if their settings ask for it.
    pub fn grants(&self, protection: Protection) -> bool {
        self.refusal(protection).is_none()
    }

    /// Why servers do not get this protection.
    pub fn refusal(&self, protection: Protection) -> Option<&str> {
        match self.outcomes.get(&protection) {
            Some(Ok(())) => None,
            Some(Err(reason)) => Some(reason),
            None => Some("not probed"),
        }
    }

    /// Whether a server has processes and a `/proc` of its own.
    pub fn isolates(&self) -> bool {
        self.grants(Protection::PidNamespace) && self.grants(Protection::OwnProc)
    }

    /// Sets the metric of each protection.
    pub fn show(&self) {
        for protection in Protection::ALL {
            let value = i64::from(self.grants(protection));
            metrics::PROTECTIONS.with_label_values(&[protection.label()]).set(value);
        }
    }

    /// The protections that are granted, in words.
    pub fn granted(&self) -> String {
        let granted = Protection::ALL.into_iter().filter(|protection| self.grants(*protection));
        granted.map(Protection::label).collect::<Vec<_>>().join(", ")
    }

    /// The protections that are refused, each with the reason.
    pub fn refused(&self) -> String {
        let refused = Protection::ALL.into_iter().filter_map(|protection| {
            Some(format!("{} ({})", protection.label(), self.refusal(protection)?))
        });
        refused.collect::<Vec<_>>().join(", ")
    }
}

/// The standard output of a probe. If it is empty and the probe failed, the first line of its standard error is the error.
fn output_of_probe(guard: &Guard, user: Option<&RunAs>) -> io::Result<String> {
    let mut command = guard.probe(user.map(RunAs::for_guard));
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut probe = command.spawn()?;
    let ended = wait_for(&mut probe);
    if ended.is_err() {
        let _ = probe.kill();
        let _ = probe.wait();
    }
    let status = ended?;
    // The process has ended, and its few lines fit the pipes.
    let output = text_of(probe.stdout.take())?;
    if output.is_empty() && !status.success() {
        let errors = text_of(probe.stderr.take())?;
        let cause = errors.lines().next().unwrap_or("it printed nothing");
        return Err(io::Error::other(cause.to_owned()));
    }
    Ok(output)
}

fn text_of(pipe: Option<impl io::Read>) -> io::Result<String> {
    let mut text = String::new();
    let pipe = pipe.ok_or_else(|| io::Error::other("no pipe"))?;
    pipe.take(1 << 16).read_to_string(&mut text)?;
    Ok(text)
}

fn wait_for(probe: &mut Child) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + PROBE_MAX;
    loop {
        if let Some(status) = probe.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            return Err(io::Error::other("it did not end in time"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protection_is_found_by_its_label() {
        for protection in Protection::ALL {
            assert_eq!(Protection::of_label(protection.label()), Some(protection));
        }
    }

    #[test]
    fn without_a_guard_nothing_is_granted_and_the_reason_is_named() {
        let protections = Protections::probe(None, None);
        assert!(!protections.isolates());
        assert!(protections.refused().contains("own_proc (this program does not call"));
        assert_eq!(protections.granted(), "");
    }
}
