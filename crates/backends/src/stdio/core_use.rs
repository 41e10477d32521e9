//! Whether a process that was started wants a core.

use std::fs::File;
use std::io::Read as _;

/// So many processes are looked at: a guard, its init, and what a program starts first.
const PROCESSES_MAX: usize = 16;

/// As much of a file is read: what is looked for is within that, however many children a process has.
const BYTES_MAX: usize = 512;

/// Whether the first thread of this process, or of one that its first thread started, computes or waits for a core.
/// `false` if the kernel does not tell. Two short files are read for each process, which takes some 10 µs.
pub(super) fn wants_core(pid: u32) -> bool {
    let mut processes = vec![pid];
    let mut next = 0;
    while let Some(pid) = processes.get(next).copied() {
        // Of the thread: the file of the process adds up what all of its threads used.
        if is_runnable(&beginning(format!("/proc/{pid}/task/{pid}/stat"))) {
            return true;
        }
        let room = PROCESSES_MAX.saturating_sub(processes.len());
        let children = beginning(format!("/proc/{pid}/task/{pid}/children"));
        processes.extend(pids(&children).take(room));
        next += 1;
    }
    false
}

/// Whether the state, which is behind the name in brackets, is "running or runnable".
fn is_runnable(stat: &[u8]) -> bool {
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    state == Some(&b'R')
}

/// The numbers in a list that may be cut: each whole one has a space behind it.
fn pids(list: &[u8]) -> impl Iterator<Item = u32> {
    let whole = list.iter().rposition(|byte| *byte == b' ').unwrap_or_default();
    let numbers = list[..whole].split(|byte| *byte == b' ');
    numbers.filter_map(|number| str::from_utf8(number).ok()?.parse().ok())
}

fn beginning(path: String) -> Vec<u8> {
    let mut bytes = vec![0; BYTES_MAX];
    let read = File::open(path).and_then(|mut file| file.read(&mut bytes)).unwrap_or_default();
    bytes.truncate(read);
    bytes
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use tempfile::TempDir;

    use super::*;

    /// A shell that computes as long as `$RUNS` is there.
    pub(crate) const COMPUTES: &str = "while [ -e \"$RUNS\" ]; do :; done";

    /// A shell with a script, which ends with this at the latest.
    pub(crate) struct Script {
        child: Child,
        runs: Option<TempDir>,
    }

    impl Script {
        pub(crate) fn start(script: &str) -> Self {
            let runs = tempfile::tempdir().unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", script]).env("RUNS", runs.path()).stdin(Stdio::piped());
            Self { child: command.spawn().unwrap(), runs: Some(runs) }
        }

        pub(crate) fn pid(&self) -> u32 {
            self.child.id()
        }

        /// Ends what computes.
        pub(crate) fn stop_computing(&mut self) {
            self.runs = None;
        }

        /// Waits until this is so at twenty looks after one another.
        pub(crate) fn wait_for(&self, wants: bool) {
            let until = Instant::now() + Duration::from_secs(20);
            let mut same = 0;
            while same < 20 {
                assert!(Instant::now() < until, "{wants} was never so for long");
                same = if wants_core(self.pid()) == wants { same + 1 } else { 0 };
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            self.runs = None;
            self.child.stdin = None;
            let _ended = self.child.wait();
        }
    }

    #[test]
    fn a_program_wants_a_core_while_it_or_what_it_started_computes() {
        for (script, wants) in [
            ("read line; true", false),
            ("sh -c 'read line; true'; true", false),
            (COMPUTES, true),
            (&format!("(sh -c '({COMPUTES}; true); true'; true); true"), true),
        ] {
            Script::start(script).wait_for(wants);
        }
    }

    #[test]
    fn of_a_process_that_is_gone_nothing_is_known() {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(!wants_core(child.id()));
    }

    #[test]
    fn the_state_is_behind_the_whole_name() {
        for (stat, expected) in [
            ("7 (sh) R 1 7", true),
            ("7 (sh) S 1 7", false),
            ("7 (a) R b) S 1", false),
            ("7 (a) S b) R 1", true),
            ("7 (sh)", false),
            ("", false),
        ] {
            assert_eq!(is_runnable(stat.as_bytes()), expected, "{stat}");
        }
    }

    #[test]
    fn a_number_that_is_cut_is_left_out() {
        for (list, expected) in [("", vec![]), ("12 ", vec![12]), ("12 345 67", vec![12, 345])] {
            assert_eq!(pids(list.as_bytes()).collect::<Vec<_>>(), expected, "{list}");
        }
    }
}
