//! One session's log. Its numbers are consecutive for any sequence of batches.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{Appended, Error};

/// A log. It takes one pointer of memory while it has no entries.
///
/// The session's owner bounds it by raising the floor.
#[derive(Debug, Default)]
pub(crate) struct Log(Option<Box<Entries>>);

/// The replayable entries, at least one.
#[derive(Debug)]
struct Entries {
    /// The number of the first entry.
    first: u64,
    entries: VecDeque<Bytes>,
}

impl Entries {
    fn next(&self) -> u64 {
        self.first.saturating_add(self.entries.len() as u64)
    }
}

impl Log {
    /// The number of the last entry.
    pub(crate) fn last(&self) -> Option<u64> {
        self.0.as_ref().map(|held| held.next() - 1)
    }

    /// Appends the new entries by the rules of [`crate::Store::append`].
    pub(crate) fn append(
        &mut self,
        first: u64,
        floor: u64,
        entries: Vec<Bytes>,
    ) -> Result<Appended, Error> {
        let end = first.saturating_add(entries.len() as u64);
        let appended = Appended { through: end.checked_sub(1) };
        // A log that is empty, or ends below the floor, has no replayable entry: the batch
        // must begin at the floor. Any other log continues where it ends.
        let expected = self.0.as_ref().map_or(floor, |held| held.next().max(floor));
        if first > expected {
            return Err(Error::Hole { last: self.last() });
        }
        self.trim(floor);
        if end > expected {
            self.extend(expected, entries, (expected - first) as usize);
        }
        Ok(appended)
    }

    /// Appends `entries` but for the first `skip` of them; the first kept one is number `expected`.
    fn extend(&mut self, expected: u64, mut entries: Vec<Bytes>, skip: usize) {
        entries.drain(..skip);
        match &mut self.0 {
            Some(held) => held.entries.extend(entries),
            None => {
                self.0 = Some(Box::new(Entries { first: expected, entries: entries.into() }));
            }
        }
    }

    /// Drops the entries below the floor.
    fn trim(&mut self, floor: u64) {
        let Some(held) = &mut self.0 else { return };
        let below = floor.saturating_sub(held.first);
        if below >= held.entries.len() as u64 {
            self.0 = None;
            return;
        }
        held.entries.drain(..below as usize);
        held.first += below;
    }

    /// All entries with their numbers.
    pub(crate) fn to_vec(&self) -> Vec<(u64, Bytes)> {
        self.0.as_ref().map_or_else(Vec::new, |held| {
            (held.first..).zip(held.entries.iter().cloned()).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Appends batches of `(first, floor, count)` and compares the numbers in the log.
    fn check(batches: &[(u64, u64, u64)], held: std::ops::Range<u64>) {
        let mut log = Log::default();
        for &(first, floor, count) in batches {
            let entries = (first..first + count).map(entry).collect();
            // A refused batch changes nothing.
            let before = log.to_vec();
            if log.append(first, floor, entries).is_err() {
                assert_eq!(log.to_vec(), before);
            }
        }
        assert_eq!(log.0.is_none(), held.is_empty(), "an empty log takes no memory");
        assert_eq!(log.to_vec(), held.map(|n| (n, entry(n))).collect::<Vec<_>>());
    }

    fn entry(number: u64) -> Bytes {
        number.to_string().into()
    }

    #[test]
    fn entries_that_the_log_holds_are_dropped_and_the_rest_appended() {
        check(&[(1, 1, 3), (2, 1, 4)], 1..6);
        check(&[(1, 1, 3), (1, 1, 2)], 1..4);
    }

    #[test]
    fn numbers_may_begin_at_zero() {
        check(&[(0, 0, 0), (0, 0, 2), (2, 0, 1)], 0..3);
        let mut log = Log::default();
        assert_eq!(log.append(0, 0, Vec::new()).unwrap(), Appended { through: None });
    }

    #[test]
    fn a_hole_is_refused_and_names_the_last_number() {
        check(&[(1, 1, 3), (5, 1, 1)], 1..4);
        let mut log = Log::default();
        let refused = log.append(2, 1, vec![entry(2)]);
        assert!(matches!(refused, Err(Error::Hole { last: None })));
        log.append(1, 1, vec![entry(1)]).unwrap();
        let refused = log.append(3, 1, vec![entry(3)]);
        assert!(matches!(refused, Err(Error::Hole { last: Some(1) })));
    }

    #[test]
    fn a_log_that_ends_below_the_floor_is_replaced_by_a_batch_that_begins_at_the_floor() {
        check(&[(1, 1, 3), (7, 7, 2)], 7..9);
        check(&[(1, 1, 3), (8, 7, 2)], 1..4);
    }

    #[test]
    fn entries_below_the_floor_are_dropped_from_the_log_and_the_batch() {
        check(&[(1, 1, 3), (4, 3, 2)], 3..6);
        check(&[(1, 1, 3), (4, 5, 3)], 5..7);
        check(&[(1, 1, 3), (4, 9, 2)], 0..0);
        check(&[(1, 1, 3), (4, 4, 0)], 0..0);
    }

    #[test]
    fn a_lower_floor_restores_no_entry() {
        check(&[(1, 1, 4), (5, 4, 1), (1, 1, 4)], 4..6);
    }
}
