//! Counts and logs lines of a child that are not messages.

use super::program::Program;
use crate::metrics;

/// Maximum number of logged junk lines of one process; further ones are only counted.
const LOGGED_MAX: u32 = 20;

/// Counts and logs lines that are not messages. Never quotes them (STD-02).
#[derive(Default)]
pub(super) struct Junk(u32);

impl Junk {
    pub(super) fn count_line(&mut self, program: &Program, why: &str) {
        metrics::JUNK_LINES.inc();
        if self.0 < LOGGED_MAX {
            self.0 += 1;
            tracing::warn!(
                backend = program.name,
                why,
                "stdio server wrote a line that is not a message"
            );
        }
    }
}
