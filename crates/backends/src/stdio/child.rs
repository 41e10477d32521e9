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

use super::children::{MARK, Place};
use crate::guard::{self, Bounds};
use crate::metrics;

/// How often a process is looked after where the kernel cannot tell of its end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often the descendants of a killed guard are looked for, since new ones may
/// appear while the old ones are killed.
const SEARCHES_MAX: usize = 10;

/// The standard streams of a process, on the node's side.
pub(super) struct Streams {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

/// A running process. Dropped before its end was seen, it is buried.
pub(super) struct Child(Option<UnreapedChild>);

impl Child {
    pub(super) fn new(process: std::process::Child, place: Place, mark: String) -> Self {
        Self(Some(UnreapedChild { process, place, mark }))
    }

    fn unreaped(&self) -> &UnreapedChild {
        // Taken only by what consumes the child.
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

    /// Sets limits from outside where no guard does it from inside. The process may
    /// have done its first steps by then.
    pub(super) fn bound(&self, bounds: &Bounds) {
        let unreaped = self.unreaped();
        if !unreaped.is_guarded()
            && let Err(error) = bounds.apply(Some(unreaped.pid()))
        {
            tracing::warn!(%error, "the limits of a server could not be set");
        }
    }

    /// Returns when the process has ended. It stays a zombie, so that the kernel gives
    /// its id to no other process before its group is killed.
    pub(super) async fn ended(&self) {
        let pid = self.unreaped().pid();
        match watch(pid) {
            Ok(watched) if watched.readable().await.is_ok() => {}
            _ => {
                while !has_ended(pid) {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        }
    }

    /// Has the process ended, reaped or not?
    pub(super) fn has_ended(&self) -> bool {
        has_ended(self.unreaped().pid())
    }

    /// Asks the process to go.
    pub(super) fn terminate(&self) {
        let unreaped = self.unreaped();
        // A guard passes it on to the group, which would otherwise hear it twice.
        let _ = if unreaped.is_guarded() {
            kill_process(unreaped.pid(), Signal::TERM)
        } else {
            kill_process_group(unreaped.pid(), Signal::TERM)
        };
    }

    /// Makes the process go, by its guard where it has one.
    pub(super) fn hang_up(&self) {
        self.unreaped().hang_up();
    }

    /// Kills the process and its group.
    pub(super) fn kill(&self) {
        self.unreaped().kill();
    }

    /// The process itself, for one that ended or was told to.
    pub(super) fn into_unreaped(mut self) -> Option<UnreapedChild> {
        self.0.take()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(unreaped) = self.0.take() {
            // At once: the node itself may be about to exit.
            unreaped.hang_up();
            unreaped.place.0.clone().reap(unreaped);
        }
    }
}

/// A process to which nothing is sent any more, and which is not reaped yet.
pub(super) struct UnreapedChild {
    process: std::process::Child,
    place: Place,
    mark: String,
}

impl UnreapedChild {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn is_guarded(&self) -> bool {
        self.place.0.is_guarded()
    }

    pub(super) fn hang_up(&self) {
        if self.is_guarded() {
            let _ = kill_process(self.pid(), Signal::HUP);
        } else {
            self.kill();
        }
    }

    pub(super) fn kill(&self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
    }

    /// Has the process ended? If so, nothing of it is left now.
    pub(super) fn is_over(&mut self) -> bool {
        if !has_ended(self.pid()) {
            return false;
        }
        let (_, must_search) = self.finish();
        if must_search {
            self.kill_marked();
        }
        true
    }

    /// Kills what is left of the group of a process that has ended, and reaps it. Gives
    /// its status, and whether its descendants have to be searched for, which takes a
    /// while: its guard was killed.
    pub(super) fn finish(&mut self) -> (Option<ExitStatus>, bool) {
        // Has no effect after a guard's orderly end, which leaves no process.
        self.kill();
        let status = self.process.wait().ok();
        let is_orderly = status.is_some_and(|status| status.code().is_some());
        (status, self.is_guarded() && !is_orderly)
    }

    /// Kills the descendants of a guard that did not end by itself. They are orphans now;
    /// the mark in their environment identifies them.
    pub(super) fn kill_marked(&self) {
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

/// Something that becomes readable when the process has ended.
#[expect(deprecated, reason = "sound for an owned descriptor, and its successor is unsafe")]
fn watch(pid: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// Has the process ended, reaped or not?
fn has_ended(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
}
