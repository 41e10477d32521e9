//! What a process may do beyond its user's rights, and which processes may read it.

use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Prevents other processes of the same user from reading this process or attaching to it, and
/// disables core dumps. Every start of a program undoes it.
pub fn not_dumpable() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
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
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    Ok(set_capabilities(None, sets)?)
}
