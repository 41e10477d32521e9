//! Whether a process that was started wants a core.

use std::fs::File;
use std::io::Read as _;

/// So many processes are looked at: a guard, its init, and what a program starts first.
const PROCESSES_MAX: usize = 16;

/// As much of a file is read: what is looked for is within that, however many children a process has.
const BYTES_MAX: usize = 512;

/// Whether the first thread of this process, or of one that it started, computes or waits for a core. `false` if the
/// kernel does not tell. A few short files are read for each process, which takes some 10 µs.
pub(super) fn wants_core(pid: u32) -> bool {
    let mut processes = vec![pid];
    let mut next = 0;
    while let Some(pid) = processes.get(next).copied() {
        if is_runnable(pid) {
            return true;
        }
        let room = PROCESSES_MAX.saturating_sub(processes.len());
        processes.extend(children(pid).into_iter().take(room));
        next += 1;
    }
    false
}

/// Whether the state in `/proc/…/stat`, which is behind the name in brackets, is "running or runnable".
fn is_runnable(pid: u32) -> bool {
    let stat = beginning(format!("/proc/{pid}/stat"));
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    state == Some(&b'R')
}

/// The processes that this one started and that still run.
fn children(pid: u32) -> Vec<u32> {
    let list = beginning(format!("/proc/{pid}/task/{pid}/children"));
    // A number that is cut at the end has no space behind it.
    let whole = list.iter().rposition(|byte| *byte == b' ').unwrap_or_default();
    let numbers = list[..whole].split(|byte| *byte == b' ');
    numbers.filter_map(|number| str::from_utf8(number).ok()?.parse().ok()).collect()
}

fn beginning(path: String) -> Vec<u8> {
    let mut bytes = vec![0; BYTES_MAX];
    let read = File::open(path).and_then(|mut file| file.read(&mut bytes)).unwrap_or_default();
    bytes.truncate(read);
    bytes
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    fn start(script: &str, until: &Path) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("UNTIL", until).stdin(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Waits until this is so at twenty looks after one another.
    fn wait_for(pid: u32, wants: bool) {
        let until = Instant::now() + Duration::from_secs(20);
        let mut same = 0;
        while same < 20 {
            assert!(Instant::now() < until, "{wants} was never so for long");
            same = if wants_core(pid) == wants { same + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_program_wants_a_core_while_it_or_what_it_started_computes() {
        let folder = tempfile::tempdir().unwrap();
        let end = folder.path().join("end");
        for (script, wants) in [
            ("read line; true", false),
            ("sh -c 'read line; true'; true", false),
            ("until [ -e $UNTIL ]; do :; done", true),
            ("(sh -c '(until [ -e $UNTIL ]; do :; done; true); true'; true); true", true),
        ] {
            let mut child = start(script, &end);
            wait_for(child.id(), wants);
            std::fs::write(&end, "").unwrap();
            drop(child.stdin.take());
            child.wait().unwrap();
            std::fs::remove_file(&end).unwrap();
        }
    }

    #[test]
    fn of_a_process_that_is_gone_nothing_is_known() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!wants_core(child.id()));
        assert_eq!(children(child.id()), [0; 0]);
    }

    #[test]
    fn the_children_of_a_process_are_found() {
        let mut child = Command::new("sleep").arg("1").spawn().unwrap();
        // This test may run on any thread of the process.
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let lists = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
        let id = child.id().to_string();
        assert!(lists.flatten().any(|list| list.split(' ').any(|number| number == id)));
        child.wait().unwrap();
    }
}
