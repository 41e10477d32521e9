//! The namespaces of a server: users, processes, mounts, shared memory and queues of System V.
//! What is mounted in them is the job of `mounts`.

use std::fs;
use std::io;

use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, UnshareFlags, capabilities, configure_capability_in_ambient_set,
    set_capabilities,
};

use super::privileges::more_than_one_thread;

/// The capabilities that the init needs in the namespaces: to mount `/proc`, to bring loopback
/// up, to bound further namespaces, and to give all capabilities up.
const OF_INIT: [CapabilitySet; 4] = [
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::NET_ADMIN,
    CapabilitySet::SYS_RESOURCE,
    CapabilitySet::SETPCAP,
];

/// Moves this process into new user, mount and IPC namespaces; its next child is process 1 of a new PID
/// namespace. User and group keep their numbers. The process must be dumpable.
pub(super) fn enter() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let flags =
        UnshareFlags::NEWUSER | UnshareFlags::NEWPID | UnshareFlags::NEWNS | UnshareFlags::NEWIPC;
    unshare(flags).map_err(named)?;
    // The kernel accepts a map of groups only from a process that can no longer change its groups.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    keep_capabilities_over_exec()
}

/// Names a cause that its number does not.
fn named(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidInput => more_than_one_thread(),
        _ => error,
    }
}

/// A program that is not started by root has no capabilities, unless they are ambient.
fn keep_capabilities_over_exec() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= OF_INIT.into_iter().collect();
    set_capabilities(None, sets)?;
    for capability in OF_INIT {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Moves this process into a new network namespace.
pub(super) fn unshare_network() -> io::Result<()> {
    unshare(UnshareFlags::NEWNET)
}

#[expect(deprecated, reason = "sound without `FILES`, and its successor is unsafe")]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    Ok(rustix::thread::unshare(flags)?)
}
