//! The assignment of cores: the servers run on one core, the load on another, if the machine
//! has two. A measurement shows the work of one core of a server on every machine.

use std::ffi::OsStr;
use std::path::Path;
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
    on(cores().0, program)
}

/// A command that runs on the servers' core, with a lower priority than other programs there.
pub(crate) fn behind_others(program: impl AsRef<OsStr>) -> Command {
    nice_on(cores().0, program)
}

/// A command that runs on the load's core, with a lower priority than other programs there.
pub(crate) fn behind_others_on_load_core(program: impl AsRef<OsStr>) -> Command {
    nice_on(cores().1, program)
}

/// The same command on the servers' core and on the load's; one, if they are the same.
pub(crate) fn on_each(program: &str) -> Vec<Command> {
    let (servers, load) = cores();
    let mut both = vec![on(servers, program), on(load, program)];
    both.truncate(if servers == load { 1 } else { 2 });
    both
}

fn nice_on(core: usize, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "5", "taskset", "-c", &core.to_string()]).arg(program);
    command
}

/// A command that runs on the load's core.
pub(crate) fn on_load_core(program: impl AsRef<OsStr>) -> Command {
    on(cores().1, program)
}

fn on(core: usize, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(program);
    command
}

/// The number of the load's core.
pub(crate) fn load_core() -> usize {
    cores().1
}

/// A script that runs this program as [`behind_others`] does.
pub(crate) fn script_behind_others(program: &Path) -> String {
    let program = program.display().to_string().replace('\'', r"'\''");
    format!("#!/bin/sh\nexec nice -n 5 taskset -c {} '{program}' \"$@\"\n", cores().0)
}

/// Moves this thread to the servers' core.
pub(crate) fn enter_server_core() {
    enter(cores().0);
}

/// Moves this thread to the load's core. Threads and processes that it starts run there too.
pub(crate) fn enter_load_core() {
    enter(cores().1);
}

fn enter(number: usize) {
    let mut core = CpuSet::new();
    core.set(number);
    // If the system refuses, the servers and the load share the cores.
    let _as_it_is = sched_setaffinity(None, &core);
}
