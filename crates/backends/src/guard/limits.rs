//! The resource limits of a server's processes.

use std::io;

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

/// The resource limits of each process of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceLimits {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) files: Option<u64>,
    pub(crate) cpu_secs: Option<u64>,
    /// Processes and threads of the server together. Only set in a user namespace of the server's
    /// own: elsewhere the kernel would count all processes of the node's user.
    pub(crate) processes: Option<u64>,
}

impl ResourceLimits {
    /// Sets the limits of a process; `None` stands for this process. Its children inherit them.
    pub(crate) fn apply(&self, pid: Option<Pid>) -> io::Result<()> {
        // `Data` limits private writable memory. The address space is not limited: runtimes with
        // a garbage collector reserve far more of it than they use.
        let bounds = [
            (Resource::Data, self.memory_bytes),
            (Resource::Nofile, self.files),
            (Resource::Cpu, self.cpu_secs),
            (Resource::Nproc, self.processes),
            (Resource::Core, Some(0)),
        ];
        for (resource, bound) in bounds {
            let Some(bound) = bound else { continue };
            // Only root may raise a limit.
            let bound = getrlimit(resource).maximum.map_or(bound, |maximum| maximum.min(bound));
            prlimit(pid, resource, Rlimit { current: Some(bound), maximum: Some(bound) })?;
        }
        Ok(())
    }
}
