//! The assignment of cores: the servers run on one core, the load on another, if the machine
//! has two. A measurement shows the work of one core of a server on every machine.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The first and the last of the cores that this process was started with.
fn cores() -> (usize, usize) {
    static CORES: OnceLock<(usize, usize)> = OnceLock::new();
    *CORES.get_or_init(|| {
        let Ok(allowed) = sched_getaffinity(None) else { return (0, 0) };
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let first = cores.next().unwrap_or_default();
        (first, cores.next_back().unwrap_or(first))
    })
}

/// A command that runs on the servers' core.
pub(crate) fn on_server_core(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &cores().0.to_string()]).arg(program);
    command
}

/// Moves this thread to the load's core. Threads and processes that it starts run there too.
pub(crate) fn enter_load_core() {
    let mut core = CpuSet::new();
    core.set(cores().1);
    // If the system refuses, the servers and the load share the cores.
    let _as_it_is = sched_setaffinity(None, &core);
}
