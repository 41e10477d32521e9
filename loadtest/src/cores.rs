//! Who runs where: the servers have one core, the load another, where there are two. What
//! is measured is what one core of a server does, whatever the machine has.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores that this process was started with, the first and the last of them.
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

/// Puts this thread, and what it starts, on the load's core.
pub(crate) fn enter_load_core() {
    let mut core = CpuSet::new();
    core.set(cores().1);
    // Where the system does not allow it, the two share what there is.
    let _as_it_is = sched_setaffinity(None, &core);
}
