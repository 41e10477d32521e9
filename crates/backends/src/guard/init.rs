//! Process 1 of a server's PID namespace. When it ends, the kernel kills every process of the
//! namespace.
//!
//! Inside the namespace no process can kill it: the kernel delivers only signals for which it has
//! a handler, and then it ends its own server.

use std::io;

use rustix::process::{Signal, set_parent_process_death_signal};

use super::command_line::GuardArgs;
use super::processes::parent_of;
use super::server::{self, OwnStreams};
use super::{GUARD_FAILED, mounts, privileges, run_server};

pub(super) fn run(args: GuardArgs) -> io::Result<i32> {
    let _ = rustix::thread::set_name(c"mcp-init");
    let mut signals = server::handled_signals()?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the guard died before the call above, the kernel sends no signal. The system call for the
    // parent's id has no answer across namespaces, but `/proc` is still that of the guard.
    if parent_of("self") != Some(args.parent) {
        return Ok(GUARD_FAILED);
    }
    let streams = OwnStreams::open()?;
    if args.confinement.own_proc {
        mounts::mount_proc()?;
    }
    if args.confinement.kernel_files {
        mounts::protect_kernel_files()?;
    }
    privileges::not_dumpable()?;
    run_server(&mut signals, streams, &args)
}
