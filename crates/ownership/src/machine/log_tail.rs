//! The end of a session's log that the store has not acknowledged.

use bytes::Bytes;
use conversation::mutant;
use thin_vec::ThinVec;

use crate::rules::rule;

/// Entries that the log does not hold yet, oldest first, and how far the log is known.
#[derive(Debug)]
pub(super) struct LogTail {
    entries: ThinVec<Bytes>,
    /// The number of the first entry; without entries, the next number.
    first: u64,
    /// The session knows that everything up to this number is in the log, or below its floor.
    reported: u64,
    /// The oldest number that can be replayed.
    floor: u64,
    /// Entries below this number may be appended before a newer state is saved: they are older
    /// than that state.
    covered: u64,
}

/// A part of the tail that is to be appended.
pub(super) struct LogSlice {
    pub(super) first: u64,
    pub(super) floor: u64,
    pub(super) entries: Vec<Bytes>,
}

impl LogSlice {
    /// The number after its last entry.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }
}

impl LogTail {
    /// No entry was ever pushed.
    pub(super) fn new() -> Self {
        Self { entries: ThinVec::new(), first: 1, reported: 0, floor: 1, covered: 0 }
    }

    /// Adds entries. Returns whether the log has to be written even without entries: it must get
    /// the new floor.
    pub(super) fn push(&mut self, first: u64, floor: u64, entries: Vec<Bytes>) -> bool {
        if self.entries.is_empty() || mutant!("ownership.number_from_the_newest") {
            self.first = first;
        }
        let has_only_floor = entries.is_empty();
        self.entries.extend(entries);
        self.floor = self.floor.max(floor);
        self.drop_below_floor() || has_only_floor
    }

    /// Drops the entries below the floor, which cannot be replayed: they are not kept while the
    /// store refuses the entries before them. Returns whether that left none.
    fn drop_below_floor(&mut self) -> bool {
        let below = self.count_below(self.floor);
        self.entries.drain(..below);
        self.first += below as u64;
        if !self.entries.is_empty() {
            return false;
        }
        self.first = self.first.max(self.floor);
        below > 0
    }

    /// How many entries have a number below this one.
    fn count_below(&self, number: u64) -> usize {
        let below = usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX);
        below.min(self.entries.len())
    }

    /// The number after the newest entry.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// How many entries may be appended. `is_saved`: the record holds the newest state. The next
    /// owner must find in the record what it reads in the log: an entry follows the state that
    /// changed with it or before it.
    pub(super) fn appendable(&self, is_saved: bool) -> usize {
        if is_saved || !rule!(SavesBeforeItAppends) {
            return self.entries.len();
        }
        self.count_below(self.covered)
    }

    /// The entries that may be appended; they stay until they are acknowledged.
    pub(super) fn appendable_slice(&mut self, is_saved: bool) -> LogSlice {
        if mutant!("ownership.append_without_the_oldest_entry") && self.entries.len() > 1 {
            self.entries.remove(0);
        }
        let entries = self.entries.iter().take(self.appendable(is_saved)).cloned().collect();
        LogSlice { first: self.first, floor: self.floor, entries }
    }

    /// The record holds the state that the entries below `end` belong to.
    pub(super) fn cover(&mut self, end: u64) {
        self.covered = self.covered.max(end);
    }

    /// Everything below `end` is in the log, or below its floor. Returns the number up to which
    /// the session may rely on that, if it is new.
    pub(super) fn acknowledge(&mut self, end: u64) -> Option<u64> {
        let count = self.count_below(end);
        self.entries.drain(..count);
        if self.entries.is_empty() {
            // An idle session keeps no buffer.
            self.entries = ThinVec::new();
        }
        self.first += count as u64;
        // Entries that were dropped meanwhile are below a floor that the log does not have yet.
        let through = self.first.min(end).saturating_sub(1);
        let is_news = through > self.reported;
        self.reported = self.reported.max(through);
        is_news.then_some(through)
    }

    /// Drops all entries: this owner writes no more of them.
    pub(super) fn clear(&mut self) {
        self.entries = ThinVec::new();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
