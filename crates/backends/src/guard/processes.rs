//! Processes as the kernel lists them, and the end of all descendants.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

/// How long the guard tries to kill descendants before it exits. A process of another user, or
/// one that is stuck in the kernel, cannot be killed.
const KILLING_MAX: Duration = Duration::from_secs(5);

/// Kills children until there are none. The kernel makes orphaned descendants children of the
/// guard.
pub(super) fn kill_descendants() {
    kill_until_gone(children);
}

/// Kills the only child until it is gone, which must not have been waited for.
pub(super) fn kill_child(child: Pid) {
    kill_until_gone(|| vec![child]);
}

fn kill_until_gone(children: impl Fn() -> Vec<Pid>) {
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
    processes()
        .filter(|pid| parent_of(&pid.as_raw_nonzero().to_string()) == Some(getpid()))
        .collect()
}

/// Every process that this process's `/proc` shows.
pub(crate) fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| read_pid(entry.file_name().to_str()?))
}

/// The parent of a process, which is a number or `self`, as `/proc` shows it. In a PID namespace of
/// its own that still has its parent's `/proc`, a process finds its true parent this way.
pub(super) fn parent_of(process: &str) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before the last parenthesis may have any characters.
    let (_, after_name) = stat.rsplit_once(')')?;
    read_pid(after_name.split_ascii_whitespace().nth(1)?)
}

fn read_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

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
}
