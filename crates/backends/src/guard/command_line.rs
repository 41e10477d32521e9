//! The command line of the guard: what the node asks of it.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::process::Pid;

use super::limits::ResourceLimits;

/// What the process does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    /// Stands between the node and the server, outside of the server's namespaces.
    #[default]
    Guard,
    /// Process 1 of the server's PID namespace.
    Init,
    /// Finds out which protections the kernel grants.
    Probe,
    /// Finds out whether the kernel grants namespaces.
    ProbeNamespaces,
    /// Probes the other protections as process 1 of a PID namespace.
    ProbeInit,
    /// The command that a probe starts: exits at once.
    Nothing,
}

impl Role {
    const NAMES: [(&str, Self); 6] = [
        ("guard", Self::Guard),
        ("init", Self::Init),
        ("probe", Self::Probe),
        ("probe-namespaces", Self::ProbeNamespaces),
        ("probe-init", Self::ProbeInit),
        ("nothing", Self::Nothing),
    ];
}

/// The protections that a server is started with. An error of one of them is an error of the
/// start: the node asks only for what a probe has found to work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confinement {
    /// User, PID and mount namespaces.
    pub(crate) namespaces: bool,
    /// An own `/proc` in these namespaces.
    pub(crate) own_proc: bool,
    /// Read-only files of the kernel's configuration, in these namespaces.
    pub(crate) kernel_files: bool,
    /// No capabilities.
    pub(crate) no_capabilities: bool,
    /// No program gives its process more privileges.
    pub(crate) no_new_privs: bool,
    /// A network namespace that has only loopback.
    pub(crate) own_network: bool,
    /// The folders and files that may be written, if not all.
    pub(crate) write_paths: Option<Vec<PathBuf>>,
    /// The filter of system calls.
    pub(crate) filter_calls: bool,
    /// The cgroup to enter.
    pub(crate) cgroup: Option<PathBuf>,
    /// The user whose rights the server has.
    pub(crate) user: Option<ServerUser>,
    /// The working directory to enter with the rights of that user.
    pub(crate) cwd: Option<PathBuf>,
}

/// The user of a server, if it has one of its own. The guard takes on its rights: to start a program
/// with them, std would fork the node and so copy its page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The command line of the guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GuardArgs {
    pub(super) role: Role,
    pub(super) parent: Pid,
    pub(super) limits: ResourceLimits,
    pub(super) confinement: Confinement,
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
}

impl GuardArgs {
    /// The command line of a process of a probe.
    pub(super) fn of_probe(role: Role, parent: Pid) -> Self {
        Self {
            role,
            parent,
            limits: ResourceLimits::default(),
            confinement: Confinement::default(),
            program: OsString::new(),
            args: Vec::new(),
        }
    }

    /// The words of the command line.
    pub(super) fn to_words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let mut say = |name: &str, value: &str| words.push(format!("--{name}={value}").into());
        for (name, role) in Role::NAMES {
            if role == self.role && role != Role::Guard {
                say("role", name);
            }
        }
        say("parent", &self.parent.as_raw_nonzero().to_string());
        if let Some(user) = &self.confinement.user {
            say("user", &format!("{}:{}", user.uid, user.gid));
        }
        let limits = [
            ("data", self.limits.memory_bytes),
            ("files", self.limits.files),
            ("cpu", self.limits.cpu_secs),
            ("processes", self.limits.processes),
        ];
        for (name, limit) in limits {
            if let Some(limit) = limit {
                say(name, &limit.to_string());
            }
        }
        let confinement = &self.confinement;
        let protections = [
            ("namespaces", confinement.namespaces),
            ("proc", confinement.own_proc),
            ("kernel-files", confinement.kernel_files),
            ("no-capabilities", confinement.no_capabilities),
            ("no-new-privs", confinement.no_new_privs),
            ("network", confinement.own_network),
            ("write-list", confinement.write_paths.is_some()),
            ("filter", confinement.filter_calls),
        ];
        for (name, _) in protections.iter().filter(|(_, wanted)| *wanted) {
            say(name, "1");
        }
        let mut say_path = |name: &str, path: &PathBuf| {
            let mut word = OsString::from(format!("--{name}="));
            word.push(path);
            words.push(word);
        };
        confinement.write_paths.iter().flatten().for_each(|path| say_path("write", path));
        confinement.cgroup.iter().for_each(|path| say_path("cgroup", path));
        confinement.cwd.iter().for_each(|path| say_path("cwd", path));
        words.push("--".into());
        words.push(self.program.clone());
        words.extend(self.args.iter().cloned());
        words
    }

    /// Reads the words; `None` if they are not a guard's.
    pub(super) fn read(words: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let (mut role, mut parent) = (Role::default(), None);
        let (mut limits, mut confinement) = (ResourceLimits::default(), Confinement::default());
        let mut words = words.into_iter();
        loop {
            let word = words.next()?;
            let word = word.to_str()?;
            if word == "--" {
                break;
            }
            let (name, value) = word.split_once('=')?;
            match name {
                "--role" => role = Role::NAMES.iter().find(|(name, _)| *name == value)?.1,
                "--parent" => parent = Pid::from_raw(value.parse().ok()?),
                "--user" => {
                    let (uid, gid) = value.split_once(':')?;
                    let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
                    confinement.user = Some(ServerUser { uid, gid });
                }
                "--cwd" => confinement.cwd = Some(value.into()),
                "--data" => limits.memory_bytes = Some(value.parse().ok()?),
                "--files" => limits.files = Some(value.parse().ok()?),
                "--cpu" => limits.cpu_secs = Some(value.parse().ok()?),
                "--processes" => limits.processes = Some(value.parse().ok()?),
                "--namespaces" => confinement.namespaces = true,
                "--proc" => confinement.own_proc = true,
                "--kernel-files" => confinement.kernel_files = true,
                "--no-capabilities" => confinement.no_capabilities = true,
                "--no-new-privs" => confinement.no_new_privs = true,
                "--network" => confinement.own_network = true,
                "--filter" => confinement.filter_calls = true,
                "--write-list" => {
                    confinement.write_paths.get_or_insert_default();
                }
                "--write" => confinement.write_paths.get_or_insert_default().push(value.into()),
                "--cgroup" => confinement.cgroup = Some(value.into()),
                _ => return None,
            }
        }
        let (program, args) = (words.next()?, words.collect());
        Some(Self { role, parent: parent?, limits, confinement, program, args })
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn a_command_line_is_read_as_it_was_written() {
        let plain = GuardArgs {
            role: Role::Guard,
            parent: getpid(),
            limits: ResourceLimits::default(),
            confinement: Confinement::default(),
            program: "cat".into(),
            args: vec!["--".into(), "-n".into()],
        };
        let full = GuardArgs {
            role: Role::Init,
            limits: ResourceLimits {
                memory_bytes: Some(1),
                files: Some(2),
                cpu_secs: Some(3),
                processes: Some(4),
            },
            confinement: Confinement {
                namespaces: true,
                own_proc: true,
                kernel_files: true,
                no_capabilities: true,
                no_new_privs: true,
                own_network: true,
                write_paths: Some(vec!["/srv/a=b".into(), "/tmp".into()]),
                filter_calls: true,
                cgroup: Some("/sys/fs/cgroup/x".into()),
                user: Some(ServerUser { uid: 1, gid: 2 }),
                cwd: Some("/srv/a b".into()),
            },
            ..plain.clone()
        };
        let confinement = Confinement { write_paths: Some(Vec::new()), ..Confinement::default() };
        let nothing_written = GuardArgs { confinement, ..plain.clone() };
        for args in [plain, full, nothing_written] {
            assert_eq!(GuardArgs::read(args.to_words()), Some(args));
        }
    }
}
