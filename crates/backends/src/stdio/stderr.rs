//! Logs what a child writes to stderr, up to a rate limit (STD-03), and keeps the last lines for the
//! report of a failed start.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::Line;
use telemetry::LIMITED_BY_CALLER;
use tokio::process::ChildStderr;
use tokio::task::consume_budget;
use tokio::time::Instant;

use super::lines::{Lines, Read};
use super::program::Program;
use crate::metrics;

/// Maximum length of a logged line of stderr; the rest of the line is dropped.
const LINE_BYTES_MAX: usize = 2 << 10;

/// The burst and the rate of logged lines of stderr. Further lines are counted and dropped.
const BURST: f64 = 100.0;
const LINES_PER_SEC: f64 = 20.0;

/// Maximum number of last lines that are kept; older ones are dropped.
const TAIL_LINES_MAX: usize = 8;

/// Maximum length of a line that is kept; the rest of it is dropped.
const TAIL_LINE_BYTES_MAX: usize = 300;

/// The last lines of one child. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct StderrTail(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl StderrTail {
    fn push(&self, line: &[u8]) {
        let line = &line[..line.len().min(TAIL_LINE_BYTES_MAX)];
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line.to_vec());
    }

    /// The lines, without control characters.
    pub(super) fn lines(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = |line: &Vec<u8>| {
            String::from_utf8_lossy(line).chars().filter(|c| !c.is_control()).collect()
        };
        lines.iter().map(text).collect()
    }
}

/// Reads stderr until it ends.
pub(super) async fn log(program: Arc<Program>, stderr: ChildStderr, pid: u32, tail: StderrTail) {
    let mut lines = Lines::new(stderr, LINE_BYTES_MAX, &program.tenant, &program.shares.line_bytes);
    let mut allowance = Allowance { lines: BURST, counted: Instant::now(), dropped: 0 };
    loop {
        consume_budget().await;
        let line = match lines.next().await {
            Read::Line(Line::Whole(line) | Line::TooLong(line)) => Some(line),
            Read::Ended | Read::NoRoom => lines.take_unended(),
        };
        match line {
            None => return,
            Some(line) if line.is_empty() => {}
            Some(line) => {
                tail.push(&line);
                if allowance.take_one() {
                    let dropped = std::mem::take(&mut allowance.dropped);
                    if dropped > 0 {
                        tracing::warn!(
                            name: LIMITED_BY_CALLER,
                            backend = program.name,
                            pid,
                            dropped,
                            "lines of stderr of a stdio server dropped: more than the log's limit"
                        );
                    }
                    let text = String::from_utf8_lossy(&line);
                    // As a debug value, so that it cannot inject lines into the log.
                    tracing::info!(name: LIMITED_BY_CALLER, backend = program.name, pid, stderr = ?text, "stdio server wrote to stderr");
                } else {
                    allowance.dropped += 1;
                    metrics::STDERR_DROPPED.inc();
                }
            }
        }
    }
}

/// A token bucket for logged lines.
struct Allowance {
    lines: f64,
    counted: Instant,
    dropped: u64,
}

impl Allowance {
    fn take_one(&mut self) -> bool {
        let now = Instant::now();
        let more = now.duration_since(self.counted).as_secs_f64() * LINES_PER_SEC;
        self.counted = now;
        self.lines = (self.lines + more).min(BURST);
        if self.lines < 1.0 {
            return false;
        }
        self.lines -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_has_the_last_lines_within_its_bounds_and_without_control_characters() {
        let tail = StderrTail::default();
        for number in 0..20 {
            tail.push(format!("line {number}\r\u{1b}[31m").as_bytes());
        }
        tail.push(&[b'x'; 5_000]);
        let lines = tail.lines();
        assert_eq!(lines.len(), TAIL_LINES_MAX);
        assert_eq!(lines[0], "line 13[31m");
        assert_eq!(lines[TAIL_LINES_MAX - 1].len(), TAIL_LINE_BYTES_MAX);
    }
}
