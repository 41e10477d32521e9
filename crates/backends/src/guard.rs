//! The guard process between the node and a tenant's server. It kills all descendants of the
//! server.
//!
//! A node cannot end all descendants of a server from outside: they may leave the server's
//! process group with `setsid`, and no process is left to kill them when the node itself
//! is killed. So the guard, a small program of this crate, is the server's parent. The
//! kernel signals the guard when the node dies, and makes every orphaned descendant a
//! child of the guard. The guard exits only when all of them are dead. The server
//! communicates with the node directly: the guard passes its own standard streams on to
//! the server and never reads or writes them.
//!
//! The guard is the leader of the server's process group. It passes the first `SIGTERM`
//! or `SIGINT` on to the group. At `SIGHUP`, which the kernel also sends when the node
//! dies, it kills everything. When the server exits, the guard kills the processes that
//! the server left behind, and exits with the server's status.
//!
//! A supervisor that signals every process of the node by itself (systemd's default
//! `KillMode`, for one) stops servers before their sessions are drained. Let it signal
//! the node only (`KillMode=mixed`), which then stops its servers in order.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, getpid, getppid, getrlimit, kill_process,
    kill_process_group, prlimit, set_child_subreaper, set_parent_process_death_signal, wait,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The exit status of shells for a command that was not found.
pub(crate) const NOT_FOUND: i32 = 127;
/// The exit status of shells for a command that was found and cannot be run.
pub(crate) const NOT_RUNNABLE: i32 = 126;
/// The exit status of a guard that failed.
const GUARD_FAILED: i32 = 125;
/// Shells add the number of a signal to this, for a process that the signal ended.
pub(crate) const SIGNALLED: i32 = 128;

/// How long the guard tries to kill descendants before it exits. A process of another user, or
/// one that is stuck in the kernel, cannot be killed.
const KILLING_MAX: Duration = Duration::from_secs(5);

/// How a guard is started: a program that calls [`run`] with the arguments after `args`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The program.
    pub program: OsString,
    /// The arguments that make the program call [`run`].
    pub args: Vec<OsString>,
}

impl Guard {
    /// A guard that is the running program itself, which must call [`run`] if its first argument
    /// is `word`. Works also if the program's file is replaced while it runs.
    pub fn this_program(word: impl Into<OsString>) -> Self {
        Self { program: "/proc/self/exe".into(), args: vec![word.into()] }
    }

    /// The command line of a guard for this program.
    pub(crate) fn command(
        &self,
        bounds: &ResourceLimits,
        program: impl AsRef<OsStr>,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command.arg(format!("--parent={}", getpid().as_raw_nonzero()));
        let bounds =
            [("data", bounds.memory_bytes), ("files", bounds.files), ("cpu", bounds.cpu_secs)];
        for (name, bound) in bounds {
            command.args(bound.map(|bound| format!("--{name}={bound}")));
        }
        command.arg("--").arg(program).args(args);
        command
    }
}

/// The resource limits of each process of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceLimits {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) files: Option<u64>,
    pub(crate) cpu_secs: Option<u64>,
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

/// Runs a guard until the server and all its descendants have ended. Returns the status to exit
/// with. Must be called before anything else: it needs a process with a single thread and no
/// children.
pub fn run(args: impl IntoIterator<Item = OsString>) -> i32 {
    match GuardArgs::read(args)
        .ok_or_else(|| io::Error::other("not called as a guard"))
        .and_then(run_guard)
    {
        Ok(status) => status,
        Err(error) => {
            let _ = writeln!(io::stderr(), "guard: {error}");
            GUARD_FAILED
        }
    }
}

/// The command line of the guard.
struct GuardArgs {
    parent: Pid,
    bounds: ResourceLimits,
    program: OsString,
    args: Vec<OsString>,
}

impl GuardArgs {
    fn read(args: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let (mut parent, mut bounds) = (None, ResourceLimits::default());
        let mut args = args.into_iter();
        loop {
            let arg = args.next()?;
            let arg = arg.to_str()?;
            if arg == "--" {
                break;
            }
            let (name, value) = arg.split_once('=')?;
            let value: u64 = value.parse().ok()?;
            match name {
                "--parent" => parent = Pid::from_raw(i32::try_from(value).ok()?),
                "--data" => bounds.memory_bytes = Some(value),
                "--files" => bounds.files = Some(value),
                "--cpu" => bounds.cpu_secs = Some(value),
                _ => return None,
            }
        }
        Some(Self { parent: parent?, bounds, program: args.next()?, args: args.collect() })
    }
}

fn run_guard(args: GuardArgs) -> io::Result<i32> {
    // The name in process listings, which would be that of the link to the program otherwise.
    let _ = rustix::thread::set_name(c"mcp-guard");
    // Handlers are installed first: an earlier signal would kill the guard alone.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCHLD])?;
    set_child_subreaper(Some(getpid()))?;
    set_parent_process_death_signal(Some(Signal::HUP))?;
    // If the parent died before the call above, the kernel sends no signal.
    if getppid() != Some(args.parent) {
        return Ok(GUARD_FAILED);
    }
    args.bounds.apply(None)?;
    let server = match Command::new(&args.program).args(&args.args).spawn() {
        Ok(server) => server,
        Err(error) => {
            let _ = writeln!(io::stderr(), "guard: the command cannot be run: {error}");
            let found = error.kind() != io::ErrorKind::NotFound;
            return Ok(if found { NOT_RUNNABLE } else { NOT_FOUND });
        }
    };
    let status = close_own_streams().and_then(|()| wait_for_server(&mut signals, server.id()));
    kill_descendants();
    Ok(status?.map_or(SIGNALLED + SIGHUP, shell_status))
}

/// Closes the guard's copies of the server's streams, so that the node sees when the server
/// closes them.
fn close_own_streams() -> io::Result<()> {
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    rustix::stdio::dup2_stderr(&nowhere)?;
    Ok(())
}

/// Returns the server's status when it exits, or `None` after `SIGHUP`.
fn wait_for_server(signals: &mut Signals, server: u32) -> io::Result<Option<ExitStatus>> {
    let mut terminated = false;
    loop {
        if let Some(status) = reap_until(server)? {
            return Ok(Some(status));
        }
        for signal in signals.wait() {
            match signal {
                SIGHUP => return Ok(None),
                SIGTERM | SIGINT if !terminated => {
                    // The group includes the guard, which ignores its own copy.
                    terminated = true;
                    kill_process_group(getpid(), Signal::TERM)?;
                }
                _ => {}
            }
        }
    }
}

/// Reaps children that have ended. Stops at the server, and returns its status.
fn reap_until(server: u32) -> io::Result<Option<ExitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().cast_unsigned() == server => {
                return Ok(Some(ExitStatus::from_raw(status.as_raw())));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kills children until there are none. The kernel makes orphaned descendants children of the
/// guard.
fn kill_descendants() {
    let deadline = Instant::now() + KILLING_MAX;
    let mut pause = Duration::from_millis(1);
    while Instant::now() < deadline {
        for child in children() {
            let _ = kill_process(child, Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// The children of this process, also those that have ended.
fn children() -> Vec<Pid> {
    listed_children().unwrap_or_else(|_| found_children())
}

/// The kernel's list of children, if the kernel has it. It has the children of this thread, which
/// is the only one.
fn listed_children() -> io::Result<Vec<Pid>> {
    let listed = fs::read_to_string("/proc/thread-self/children")?;
    Ok(listed.split_ascii_whitespace().filter_map(read_pid).collect())
}

fn found_children() -> Vec<Pid> {
    processes().filter(|pid| parent_of(*pid) == Some(getpid())).collect()
}

/// Every process of the system.
pub(crate) fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| read_pid(entry.file_name().to_str()?))
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name before the last parenthesis may have any characters.
    let (_, after_name) = stat.rsplit_once(')')?;
    read_pid(after_name.split_ascii_whitespace().nth(1)?)
}

fn read_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

/// The exit status that a shell would return.
fn shell_status(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| SIGNALLED + status.signal().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_found_with_and_without_the_kernels_list() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(listed_children().unwrap().contains(&pid));
        assert!(found_children().contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!found_children().contains(&pid));
    }

    #[test]
    fn a_command_line_is_parsed_as_it_was_written() {
        let bounds = ResourceLimits { memory_bytes: Some(1), files: None, cpu_secs: Some(3) };
        let guard = Guard { program: "node".into(), args: vec!["guard".into()] };
        let command = guard.command(&bounds, "cat", ["--", "-n"]);
        let args = GuardArgs::read(command.get_args().skip(1).map(Into::into)).unwrap();
        assert_eq!((args.parent, args.bounds), (getpid(), bounds));
        assert_eq!((args.program, args.args), ("cat".into(), vec!["--".into(), "-n".into()]));
    }
}
