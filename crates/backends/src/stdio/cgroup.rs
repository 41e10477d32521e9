//! The cgroup of a server: bounds of all its processes together, and a way to kill them all.
//!
//! An operator delegates an empty directory of cgroup v2 to the node. The node makes a cgroup in it
//! for each server, and removes it when the server has ended.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Access;

/// The controllers that the node asks for. A bound whose controller the directory does not have
/// cannot be set.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// The file with the controllers that cgroups below the directory have.
const ENABLED: &str = "cgroup.subtree_control";

/// How often the removal of a cgroup is tried: killed processes leave it a moment later.
const REMOVALS_MAX: u32 = 20;

/// The time to which a bound of processor time refers, in microseconds.
const CPU_PERIOD: u64 = 100_000;

/// The bounds of all processes of a server together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CgroupLimits {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) processes: Option<u64>,
    pub(crate) cpu_percent: Option<u64>,
}

impl CgroupLimits {
    fn files(&self) -> impl Iterator<Item = (&'static str, String)> {
        let memory = self.memory_bytes.map(|bytes| ("memory.max", bytes.to_string()));
        let processes = self.processes.map(|processes| ("pids.max", processes.to_string()));
        let cpu = self.cpu_percent.map(|percent| {
            ("cpu.max", format!("{} {CPU_PERIOD}", percent.saturating_mul(CPU_PERIOD / 100)))
        });
        [memory, processes, cpu].into_iter().flatten()
    }
}

/// Finds out whether servers can have cgroups in this directory: returns the controllers that it has.
/// Changes nothing, so it can be called for the directory of a node that runs.
pub(crate) fn inspect(folder: &Path) -> Result<Vec<String>, String> {
    let available = controllers(folder)?;
    let may_write = |path: &Path, what: &str| {
        let access = Access::WRITE_OK;
        rustix::fs::access(path, access).map_err(|error| format!("{what}: {error}"))
    };
    may_write(folder, "no cgroup can be created in it")?;
    let enabled = fs::read_to_string(folder.join(ENABLED)).unwrap_or_default();
    let is_enabled = |name: &String| enabled.split_ascii_whitespace().any(|found| found == name);
    let Some(missing) = available.iter().find(|name| !is_enabled(name)) else {
        return Ok(available);
    };
    let what = format!("the controller `{missing}` cannot be enabled");
    may_write(&folder.join(ENABLED), &what)?;
    match fs::read_to_string(folder.join("cgroup.procs")) {
        Ok(processes) if !processes.is_empty() => Err(format!("{what}: it has processes")),
        _ => Ok(available),
    }
}

/// Prepares this directory for the cgroups of servers: enables its controllers, and removes the empty
/// cgroups of nodes that have ended. For a node that starts.
pub fn prepare(folder: &Path) -> Result<(), String> {
    for controller in controllers(folder)? {
        fs::write(folder.join(ENABLED), format!("+{controller}"))
            .map_err(|error| format!("the controller `{controller}` cannot be enabled: {error}"))?;
    }
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let server = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        // That of another node may be empty because its server starts in this moment.
        if server.is_some_and(|server| !is_of_running_node(server)) {
            // Fails if it has processes.
            let _ = fs::remove_dir(entry.path());
        }
    }
    let trial = format!("{}.trial", std::process::id());
    let trial = Cgroup::create(folder, &trial, &CgroupLimits::default())
        .map_err(|error| format!("no cgroup can be created in it: {error}"))?;
    drop(trial);
    Ok(())
}

/// Whether the node that a cgroup's name begins with runs, or another process that has its number now.
/// Its cgroup is then removed by a later node.
fn is_of_running_node(name: &str) -> bool {
    let node = name.split('.').next().and_then(|node| node.parse::<u32>().ok());
    node.is_some_and(|node| {
        node != std::process::id() && Path::new(&format!("/proc/{node}")).exists()
    })
}

/// The controllers of this directory that the node asks for.
fn controllers(folder: &Path) -> Result<Vec<String>, String> {
    let controllers = fs::read_to_string(folder.join("cgroup.controllers"))
        .map_err(|error| format!("it is not a directory of cgroup v2: {error}"))?;
    let available = controllers.split_ascii_whitespace();
    Ok(available.filter(|name| CONTROLLERS.contains(name)).map(str::to_owned).collect())
}

/// The beginning of the names of the node's cgroups.
const PREFIX: &str = "server-";

/// The cgroup of one server. Dropping it kills the processes that it still has, and removes it. This
/// may block for some milliseconds, or longer in the kernel.
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a cgroup. `name` is unique on the machine, and begins with the number of the node's
    /// process and a full stop.
    pub(super) fn create(folder: &Path, name: &str, limits: &CgroupLimits) -> io::Result<Self> {
        let path = folder.join(format!("{PREFIX}{name}"));
        fs::create_dir(&path)?;
        let cgroup = Self(path);
        for (file, value) in limits.files() {
            fs::write(cgroup.0.join(file), value).map_err(|error| {
                io::Error::other(format!("`{file}` of the cgroup cannot be set: {error}"))
            })?;
        }
        Ok(cgroup)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..REMOVALS_MAX {
            match fs::remove_dir(&self.0) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(_) => {
                    let _ = fs::write(self.0.join("cgroup.kill"), "1");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        tracing::warn!(cgroup = ?self.0, "the cgroup of a stdio server cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_removes_the_cgroups_of_nodes_that_have_ended_and_of_no_other() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        // The kernel gives no process the second number; the third is that of an earlier process
        // with the number of this one.
        let parent = std::os::unix::process::parent_id();
        let own = std::process::id();
        let names = [format!("{parent}.1.0"), "4294967295.1.0".to_owned(), format!("{own}.1.0")];
        let paths = names.map(|name| folder.path().join(format!("{PREFIX}{name}")));
        paths.iter().for_each(|path| fs::create_dir(path).unwrap());
        prepare(folder.path()).unwrap();
        assert_eq!(paths.map(|path| path.exists()), [true, false, false]);
    }
}
