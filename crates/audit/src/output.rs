//! The destination, with what a write left. The writer's thread has it while it writes; a thread that
//! serves clients uses it at the end of a tick, if the destination answers at once and is free.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::queue::{Batch, Queue};
use crate::sink::Sink;

/// A write that takes longer is one of a disk that may hang soon.
const SLOW: Duration = Duration::from_millis(5);

/// For so long after a slow or failed write only the writer's thread writes.
const CAREFUL: Duration = Duration::from_secs(10);

/// The destination of a node's records.
pub(crate) struct Output {
    pub(crate) sink: Sink,
    /// What a thread that serves clients could not write. The writer's thread writes it first.
    pub(crate) rest: Option<Rest>,
    care: Care,
}

/// A batch of which a beginning was written.
pub(crate) struct Rest {
    pub(crate) queue: Arc<Queue>,
    pub(crate) batch: Batch,
    /// The length of the beginning.
    pub(crate) done: usize,
}

/// Whether the destination took the last records at once.
#[derive(Debug, Default)]
struct Care {
    until: Option<Instant>,
}

impl Output {
    pub(crate) fn new(sink: Sink) -> Self {
        Self { sink, rest: None, care: Care::default() }
    }

    /// Whether a thread that serves clients may write so many bytes now.
    pub(crate) fn takes_at_once(&mut self, bytes: usize, now: Instant) -> bool {
        self.rest.is_none() && self.sink.takes_at_once(bytes, now) && self.care.is_over(now)
    }

    /// Writes whole lines with one attempt, which begins at this time. Returns the length that was written,
    /// and when the attempt ended.
    pub(crate) fn write_at_once(&mut self, lines: &[u8], began: Instant) -> (usize, Instant) {
        let written = loop {
            match self.sink.write(lines) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The writer's thread repeats it, and reports the error if it lasts.
                written => break written.unwrap_or_default(),
            }
        };
        let ended = Instant::now();
        self.care.note(began, ended, written == lines.len());
        (written, ended)
    }
}

impl Care {
    fn is_over(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| now < until) {
            return false;
        }
        self.until = None;
        true
    }

    fn note(&mut self, began: Instant, ended: Instant, is_whole: bool) {
        if !is_whole || ended.duration_since(began) > SLOW {
            self.until = Some(ended + CAREFUL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_slow_or_failed_write_the_thread_writes_for_a_while() {
        let began = Instant::now();
        for (took, is_whole, is_careful) in [
            (Duration::from_millis(5), true, false),
            (Duration::from_millis(6), true, true),
            (Duration::ZERO, false, true),
        ] {
            let ended = began + took;
            let mut care = Care::default();
            care.note(began, ended, is_whole);
            assert_eq!(care.is_over(ended), !is_careful, "{took:?}");
            assert_eq!(care.is_over(ended + CAREFUL - SLOW), !is_careful, "{took:?}");
            assert!(care.is_over(ended + CAREFUL));
        }
    }
}
