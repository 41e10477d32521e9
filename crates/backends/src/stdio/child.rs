//! One child process of a tenant: dropping its [`Child`] ends the process.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{ChildStderr, ChildStdin, ChildStdout, ExitStatus};
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open,
    waitid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::cgroup::Cgroup;
use super::children::{ChildPermit, MARK};
use crate::guard::{self, ResourceLimits};
use crate::metrics;

/// How often a process is polled if the kernel cannot notify of its end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How often the descendants of a killed guard are searched for: new ones may be started while
/// others are killed.
const SEARCHES_MAX: usize = 10;

/// The standard streams of a process, on the node's side.
pub(super) struct Streams {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// A running process. If it is dropped before its end, it is killed and reaped.
pub(super) struct Child(Option<UnreapedChild>);

impl Child {
    pub(super) fn new(
        process: std::process::Child,
        permit: ChildPermit,
        mark: String,
        cgroup: Option<Cgroup>,
    ) -> Self {
        Self(Some(UnreapedChild { process, permit, mark, cgroup }))
    }

    fn unreaped(&self) -> &UnreapedChild {
        // Only methods that consume the child take it.
        self.0.as_ref().expect("a child has its process until it is dropped")
    }

    pub(super) fn id(&self) -> u32 {
        self.unreaped().process.id()
    }

    pub(super) fn take_streams(&mut self) -> Option<Streams> {
        let process = &mut self.0.as_mut()?.process;
        let (stdin, stdout) = (process.stdin.take()?, process.stdout.take()?);
        Some(Streams { stdin, stdout, stderr: process.stderr.take()? })
    }

    /// Sets the limits of a process without a guard. The process may have run for a moment before.
    pub(super) fn bound(&self, bounds: &ResourceLimits) {
        let unreaped = self.unreaped();
        if !unreaped.is_guarded()
            && let Err(error) = bounds.apply(Some(unreaped.pid()))
        {
            tracing::warn!(%error, "limits of a stdio server could not be set; it runs without them");
        }
    }

    /// Returns when the process has ended. The process stays a zombie, so that the kernel does
    /// not reuse its id before its group is killed.
    pub(super) async fn ended(&self) {
        let pid = self.unreaped().pid();
        match watch(pid) {
            Ok(watched) if watched.readable().await.is_ok() => {}
            _ => {
                while !has_ended(pid) {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        }
    }

    /// Whether the process has ended, reaped or not.
    pub(super) fn has_ended(&self) -> bool {
        has_ended(self.unreaped().pid())
    }

    /// Sends `SIGTERM` to the process and its group, once.
    pub(super) fn terminate(&self) {
        let unreaped = self.unreaped();
        // A guard passes the signal on to the group, which would otherwise receive it twice.
        let _ = if unreaped.is_guarded() {
            kill_process(unreaped.pid(), Signal::TERM)
        } else {
            kill_process_group(unreaped.pid(), Signal::TERM)
        };
    }

    /// Ends the process at once, by its guard if it has one.
    pub(super) fn hang_up(&self) {
        self.unreaped().hang_up();
    }

    /// Kills the process and its group.
    pub(super) fn kill(&self) {
        self.unreaped().kill();
    }

    /// Takes the process of a child that has ended or was signalled to end.
    pub(super) fn into_unreaped(mut self) -> Option<UnreapedChild> {
        self.0.take()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(unreaped) = self.0.take() {
            // The signal is sent here, since the node may be about to exit.
            unreaped.hang_up();
            unreaped.permit.children.clone().reap(unreaped);
        }
    }
}

/// A process whose input is closed, and which is not reaped yet.
pub(super) struct UnreapedChild {
    process: std::process::Child,
    permit: ChildPermit,
    mark: String,
    /// Removed when the process has been reaped.
    cgroup: Option<Cgroup>,
}

impl UnreapedChild {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn is_guarded(&self) -> bool {
        self.permit.children.is_guarded()
    }

    pub(super) fn hang_up(&self) {
        if self.is_guarded() {
            let _ = kill_process(self.pid(), Signal::HUP);
        } else {
            self.kill();
        }
    }

    pub(super) fn kill(&self) {
        // A guard that was just started does not lead a group yet.
        if kill_process_group(self.pid(), Signal::KILL).is_err() {
            let _ = kill_process(self.pid(), Signal::KILL);
        }
    }

    /// Whether the process has ended. If so, reaps it and kills its descendants.
    pub(super) fn is_over(&mut self) -> bool {
        if !has_ended(self.pid()) {
            return false;
        }
        let (_, must_search) = self.reap();
        if must_search {
            self.kill_marked();
        }
        true
    }

    /// Kills what a process that has ended has left, and reaps the process. Blocks for some
    /// milliseconds if it had a cgroup, and longer if its guard was killed: then its descendants must
    /// be searched for.
    pub(super) fn finish(mut self) -> Option<ExitStatus> {
        let (status, must_search) = self.reap();
        if must_search {
            self.kill_marked();
        }
        status
    }

    fn reap(&mut self) -> (Option<ExitStatus>, bool) {
        // Has no effect after a guard's normal exit, which leaves no process.
        self.kill();
        let status = self.process.wait().ok();
        // Kills what a killed guard has left in it.
        self.cgroup = None;
        let is_orderly = status.is_some_and(|status| status.code().is_some());
        (status, self.is_guarded() && !is_orderly)
    }

    /// Kills the descendants of a guard that was killed. They are orphans now; the mark in their
    /// environment identifies them.
    fn kill_marked(&self) {
        let mark = format!("{MARK}={}", self.mark).into_bytes();
        let is_marked = |pid: &Pid| {
            let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
            let environment = std::fs::read(path).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark)
        };
        for _ in 0..SEARCHES_MAX {
            let marked: Vec<Pid> = guard::processes().filter(is_marked).collect();
            if marked.is_empty() {
                return;
            }
            for pid in marked {
                if kill_process(pid, Signal::KILL).is_ok() {
                    metrics::ORPHANS_KILLED.inc();
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A descriptor that becomes readable when the process has ended.
#[expect(deprecated, reason = "sound for an owned descriptor, and its successor is unsafe")]
fn watch(pid: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// Whether the process has ended, reaped or not.
fn has_ended(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
}
