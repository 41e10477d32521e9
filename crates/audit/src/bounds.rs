//! How much waits to be written: of one tenant, and of all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use prometheus::IntCounter;

use crate::metrics::{LeftOut, left_out, refused};

/// An amount of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: usize,
    pub(crate) records: usize,
}

impl Amount {
    /// One record.
    pub(crate) fn one(bytes: usize) -> Self {
        Self { bytes, records: 1 }
    }

    /// Adds another amount.
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.records += other.records;
    }

    /// The rest without a part of it.
    pub(crate) fn without(self, part: Self) -> Self {
        Self { bytes: self.bytes - part.bytes, records: self.records - part.records }
    }
}

/// How much waits for the writer. Threads raise it when they leave records to the writer.
#[derive(Debug, Default)]
pub(crate) struct Level {
    bytes: AtomicUsize,
    records: AtomicUsize,
}

impl Level {
    pub(crate) fn raise(&self, by: Amount) {
        self.bytes.fetch_add(by.bytes, Ordering::Relaxed);
        self.records.fetch_add(by.records, Ordering::Relaxed);
    }

    pub(crate) fn lower(&self, by: Amount) {
        self.bytes.fetch_sub(by.bytes, Ordering::Relaxed);
        self.records.fetch_sub(by.records, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether there is room for a record beside this amount, which is not in the level yet. The last
    /// record may exceed the bound.
    pub(crate) fn has_room(&self, beside: Amount, max: Amount) -> bool {
        let records = self.records.load(Ordering::Relaxed);
        self.bytes() + beside.bytes < max.bytes && records + beside.records < max.records
    }
}

/// The kinds of records of which a tenant has at most so many in a second.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limited {
    Refusals = 0,
    SignIns = 1,
}

/// One tenant's part of the node's queues.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) tenant: Arc<str>,
    pub(crate) level: Level,
    /// The second in the upper half, the records in it in the lower.
    windows: [AtomicU64; 2],
    /// Records left out since the last report, by reason.
    left_out: [AtomicU64; 2],
    left_out_total: [IntCounter; 2],
    refused: IntCounter,
}

impl Share {
    /// The share of a tenant whose metrics have this label.
    pub(crate) fn new(tenant: Arc<str>, label: &str) -> Self {
        Self {
            tenant,
            level: Level::default(),
            windows: Default::default(),
            left_out: Default::default(),
            left_out_total: left_out(label),
            refused: refused(label),
        }
    }

    /// Whether a further record of this kind is within the bound of this second.
    pub(crate) fn takes(&self, what: Limited, second: u64, per_sec: u32) -> bool {
        let second = second & u64::from(u32::MAX);
        let next = |window: u64| match (window >> 32 == second, window & u64::from(u32::MAX)) {
            (true, count) if count >= u64::from(per_sec) => None,
            (true, _) => Some(window + 1),
            (false, _) if per_sec == 0 => None,
            (false, _) => Some((second << 32) + 1),
        };
        let window = &self.windows[what as usize];
        window.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// Counts a record that is left out.
    pub(crate) fn leave_out(&self, reason: LeftOut) {
        self.left_out_total[reason as usize].inc();
        self.left_out[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that was refused because its record could not be written.
    pub(crate) fn refuse(&self) {
        self.refused.inc();
    }

    /// How many records were left out for this reason since the last call.
    pub(crate) fn take_left_out(&self, reason: LeftOut) -> u64 {
        self.left_out[reason as usize].swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_has_room_until_its_bytes_or_its_records_are_reached() {
        let (level, max) = (Level::default(), Amount { bytes: 100, records: 3 });
        level.raise(Amount { bytes: 60, records: 1 });
        assert!(level.has_room(Amount::one(30), max));
        assert!(!level.has_room(Amount::one(40), max));
        assert!(!level.has_room(Amount { bytes: 0, records: 2 }, max));
        level.lower(Amount { bytes: 60, records: 1 });
        assert!(level.has_room(Amount { bytes: 99, records: 2 }, max));
    }

    #[test]
    fn so_many_refusals_a_second_are_taken_and_sign_ins_count_apart() {
        let share = Share::new("a".into(), "a");
        let taken = |what, second| (0..10).filter(|_| share.takes(what, second, 3)).count();
        assert_eq!((taken(Limited::Refusals, 1), taken(Limited::Refusals, 1)), (3, 0));
        assert_eq!((taken(Limited::SignIns, 1), taken(Limited::Refusals, 2)), (3, 3));
        assert!(!share.takes(Limited::SignIns, 9, 0));
    }
}
