//! Finds out which protections the kernel grants: applies each to a process that does nothing
//! else, and prints the results.

use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};

use super::command_line::{GuardArgs, Role};
use super::{Guard, calls, mounts, namespaces, network, privileges, write_list};
use crate::sandbox::Protection;

/// The oldest kernel that counts the processes of a user in each user namespace alone.
const COUNTS_BY_NAMESPACE: (u32, u32) = (5, 14);

/// The exit status of process 1 of a namespace that cannot give its capabilities up.
const KEEPS_CAPABILITIES: i32 = 3;

/// Protections that exist only in namespaces.
const IN_NAMESPACES: [Protection; 4] =
    [Protection::OwnProc, Protection::KernelFiles, Protection::ProcessesMax, Protection::Network];

/// One line of a probe's output: a protection, and why the kernel refuses it.
pub(crate) fn read_line(line: &str) -> Option<(Protection, Result<(), String>)> {
    let (label, refusal) = line.split_once('\t')?;
    let outcome = if refusal.is_empty() { Ok(()) } else { Err(refusal.to_owned()) };
    Some((Protection::of_label(label)?, outcome))
}

fn report(protection: Protection, outcome: io::Result<()>) -> io::Result<()> {
    let refusal = outcome.err().map(|error| error.to_string()).unwrap_or_default();
    writeln!(io::stdout(), "{}\t{}", protection.label(), refusal.replace('\n', " "))
}

/// The probe that the node starts. The namespaces are tried by a process of their own: one that
/// failed may be in some of them.
pub(super) fn run(guard: &Guard) -> io::Result<i32> {
    if start(guard, Role::ProbeNamespaces).status()?.success() {
        return Ok(0);
    }
    for protection in IN_NAMESPACES {
        report(protection, Err(io::Error::other("needs `pid_namespace`")))?;
    }
    probe_rest(guard, false)
}

pub(super) fn run_in_namespaces(guard: &Guard) -> io::Result<i32> {
    let entered =
        namespaces::enter().and_then(|()| match start(guard, Role::ProbeInit).status()?.code() {
            Some(0) => Ok(()),
            Some(KEEPS_CAPABILITIES) => {
                Err(io::Error::other("a server would keep its capabilities in the namespaces"))
            }
            _ => Err(io::Error::other("process 1 of the namespace failed")),
        });
    let status = i32::from(entered.is_err());
    report(Protection::PidNamespace, entered)?;
    Ok(status)
}

pub(super) fn run_init(guard: &Guard) -> io::Result<i32> {
    report(Protection::OwnProc, mounts::mount_proc())?;
    report(Protection::KernelFiles, mounts::protect_kernel_files())?;
    probe_rest(guard, true)
}

/// Applies the protections in the order in which a server gets them, then starts a command.
fn probe_rest(guard: &Guard, in_namespaces: bool) -> io::Result<i32> {
    report(Protection::NoNewPrivs, privileges::no_new_privs())?;
    if in_namespaces {
        report(Protection::ProcessesMax, probe_processes(guard))?;
        report(Protection::Network, network::enter_empty())?;
    }
    let dropped = privileges::drop_capabilities();
    // With the capabilities of its namespaces a server could undo the other protections in them: unmount
    // its `/proc`, for example.
    let keeps_capabilities = in_namespaces && dropped.is_err();
    report(Protection::NoCapabilities, dropped)?;
    if keeps_capabilities {
        return Ok(KEEPS_CAPABILITIES);
    }
    report(Protection::Truncation, write_list::covers_truncation())?;
    report(Protection::WriteList, write_list::restrict(&[]))?;
    report(Protection::CallFilter, calls::filter())?;
    let status = start(guard, Role::Nothing).status()?;
    Ok(status.code().unwrap_or(1))
}

/// Whether the kernel bounds the processes of this namespace.
fn probe_processes(guard: &Guard) -> io::Result<()> {
    let release = rustix::system::uname();
    let mut numbers = release.release().to_str().unwrap_or_default().split('.').map(str::parse);
    let version = (numbers.next(), numbers.next());
    if !matches!(version, (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= COUNTS_BY_NAMESPACE)
    {
        return Err(io::Error::other("needs Linux 5.14"));
    }
    let before = getrlimit(Resource::Nproc);
    setrlimit(Resource::Nproc, Rlimit { current: Some(1), ..before })?;
    let started = start(guard, Role::Nothing).status();
    setrlimit(Resource::Nproc, before)?;
    match started {
        Err(_) => Ok(()),
        Ok(_) => Err(io::Error::other(
            "the kernel does not bound the processes of root; use `user`, or `node.cgroup`",
        )),
    }
}

fn start(guard: &Guard, role: Role) -> Command {
    let args = GuardArgs::of_probe(role, getpid());
    let mut command = guard.start(&args);
    command.stdin(Stdio::null());
    command
}
