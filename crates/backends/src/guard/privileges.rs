//! The user of a process, what it may do beyond that user's rights, and which processes may read it.

use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Uid, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// Prevents other processes of the same user from reading this process or attaching to it, and
/// disables core dumps. Every start of a program undoes it.
pub fn not_dumpable() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Undoes it, for a process that taking on a user has made undumpable.
pub(super) fn dumpable() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::Dumpable)?)
}

/// Gives this process the rights of a user and of its group, and no others. It is not dumpable
/// afterwards if it had others before.
pub(super) fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    // To the kernel this number means that nothing is to change.
    if uid == u32::MAX || gid == u32::MAX {
        return Err(io::Error::other("4294967295 is the number of no user and no group"));
    }
    // The calls below change this thread only.
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(more_than_one_thread());
    }
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    match set_thread_groups(&[]) {
        // A process that has this user already need not be root.
        Err(Errno::PERM) if geteuid() == user => {}
        outcome => outcome?,
    }
    set_thread_res_gid(group, group, group)?;
    set_thread_res_uid(user, user, user)?;
    if !user.is_root() {
        // The kernel has done so, unless the securebit `no-setuid-fixup` is set.
        clear_ambient_capability_set()?;
        set_capabilities(None, no_capabilities())?;
    }
    Ok(())
}

/// An allocator, for example, may have started a thread.
pub(super) fn more_than_one_thread() -> io::Error {
    io::Error::other("the guard has more than one thread")
}

/// No program that this process or a descendant starts gives more privileges: set-user-id bits and
/// capabilities of files have no effect.
pub(super) fn no_new_privs() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// Gives up all capabilities, for this process and what it starts, also as root.
pub(super) fn drop_capabilities() -> io::Result<()> {
    clear_ambient_capability_set()?;
    // A process without this capability is not root: what it starts has no capabilities.
    if capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..u64::BITS {
            let capability = CapabilitySet::from_bits_retain(1 << number);
            match remove_capability_from_bounding_set(capability) {
                Ok(()) => {}
                // The kernel does not have this capability, nor any with a higher number.
                Err(Errno::INVAL) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(set_capabilities(None, no_capabilities())?)
}

fn no_capabilities() -> CapabilitySets {
    let none = CapabilitySet::empty();
    CapabilitySets { effective: none, permitted: none, inheritable: none }
}
