//! Starts a server and waits for its end: what the guard does outside of a PID namespace, and
//! process 1 inside of one.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Signal, WaitOptions, kill_current_process_group, wait};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{NOT_FOUND, NOT_RUNNABLE, SIGNALLED};

/// The beginning of the names of variables that are for the server only. Some names change how the
/// dynamic loader and the allocator start a program: with such a variable a server could have code of
/// its own loaded into its next guard, before anything restricts it.
const FOR_SERVER: &str = "ROUNDHOUSE_SERVER_";

/// The name under which the guard gets a variable that is for the server.
pub(crate) fn for_server(name: &OsStr) -> OsString {
    let mut own = OsString::from(FOR_SERVER);
    own.push(name);
    own
}

/// The signals that a guard handles. Handlers are installed first: an earlier signal would kill
/// the guard alone.
pub(super) fn handled_signals() -> io::Result<Signals> {
    Signals::new([SIGTERM, SIGINT, SIGHUP, SIGCHLD])
}

/// Starts the server. An error is printed, and is the status of shells for it.
pub(super) fn start(program: &OsString, args: &[OsString]) -> Result<Child, i32> {
    let mut command = Command::new(program);
    for (name, value) in std::env::vars_os() {
        if let Some(own) = name.as_bytes().strip_prefix(FOR_SERVER.as_bytes()) {
            command.env_remove(&name).env(OsStr::from_bytes(own), value);
        }
    }
    command.args(args).spawn().map_err(|error| {
        let _ = writeln!(io::stderr(), "guard: the command {program:?} cannot be run: {error}");
        if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE }
    })
}

/// The guard's copies of the server's streams.
pub(super) struct OwnStreams(File);

impl OwnStreams {
    /// Opens what replaces the streams. Call it before anything restricts which files may be
    /// opened.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self(File::options().read(true).write(true).open("/dev/null")?))
    }

    /// Closes the copies, so that the node sees when the server closes its streams.
    pub(super) fn close(self) -> io::Result<()> {
        rustix::stdio::dup2_stdin(&self.0)?;
        rustix::stdio::dup2_stdout(&self.0)?;
        rustix::stdio::dup2_stderr(&self.0)?;
        Ok(())
    }
}

/// Returns the child's status when it exits, or `None` after `SIGHUP`. Calls `terminate` at the
/// first `SIGTERM` or `SIGINT`.
pub(super) fn wait_for(
    signals: &mut Signals,
    child: u32,
    terminate: impl Fn() -> io::Result<()>,
) -> io::Result<Option<ExitStatus>> {
    let mut terminated = false;
    loop {
        if let Some(status) = reap_until(child)? {
            return Ok(Some(status));
        }
        for signal in signals.wait() {
            match signal {
                SIGHUP => return Ok(None),
                SIGTERM | SIGINT if !terminated => {
                    terminated = true;
                    terminate()?;
                }
                _ => {}
            }
        }
    }
}

/// Passes `SIGTERM` on to the group that this process leads. The process itself ignores its own
/// copy. (Process 1 of a namespace must not name its group by number: a signal to group 1 is one
/// to every process.)
pub(super) fn terminate_own_group() -> io::Result<()> {
    Ok(kill_current_process_group(Signal::TERM)?)
}

/// Reaps children that have ended. Stops at the one that is waited for, and returns its status.
fn reap_until(child: u32) -> io::Result<Option<ExitStatus>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get().cast_unsigned() == child => {
                return Ok(Some(ExitStatus::from_raw(status.as_raw())));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The exit status that a shell would return; `None` stands for a guard that was hung up.
pub(super) fn shell_status(status: Option<ExitStatus>) -> i32 {
    status.map_or(SIGNALLED + SIGHUP, |status| {
        status.code().unwrap_or_else(|| SIGNALLED + status.signal().unwrap_or_default())
    })
}
