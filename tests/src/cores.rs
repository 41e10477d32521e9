//! Assigns processor cores to threads and programs.

use std::ffi::OsStr;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A core of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core(usize);

/// The first and the last core on which this process may run; `None` if there is only one.
pub fn two() -> Option<(Core, Core)> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).map(Core);
    Some((cores.next()?, cores.next_back()?))
}

impl Core {
    /// Moves the calling thread to this core. Threads and processes that it starts run there too.
    pub fn enter(self) -> Result<()> {
        let mut core = CpuSet::new();
        core.set(self.0);
        sched_setaffinity(None, &core).context("the system refused to assign a core")
    }

    /// A line for a shell that replaces the shell by this program on the core.
    pub fn exec(self, program: impl AsRef<OsStr>) -> String {
        format!("exec taskset -c {} '{}' \"$@\"", self.0, program.as_ref().display())
    }

    /// The number of the core, as `taskset -c` takes it.
    pub fn number(self) -> String {
        self.0.to_string()
    }
}
