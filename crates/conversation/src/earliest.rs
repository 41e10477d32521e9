//! The earliest of many deadlines.

use crate::Millis;

/// Collects the deadlines of a session's parts. It runs after every step, and therefore in plain
/// loops: one iterator over all deadlines takes more than twice as long.
pub(crate) struct Earliest(Millis);

impl Earliest {
    pub(crate) fn new() -> Self {
        Self(Millis(u64::MAX))
    }

    pub(crate) fn add_deadline(&mut self, at: Millis) {
        self.0 = self.0.min(at);
    }

    pub(crate) fn add_deadline_if_any(&mut self, at: Option<Millis>) {
        if let Some(at) = at {
            self.add_deadline(at);
        }
    }

    /// The earliest deadline; `None` if there is none.
    pub(crate) fn get(&self) -> Option<Millis> {
        (self.0.0 < u64::MAX).then_some(self.0)
    }
}
