//! Who keeps the store's data right now, so that a failover can be seen.

use std::fmt;

/// One life of a primary. Another id in its place means a failover, a restart or a move:
/// what was written last may be forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrimaryId(pub u128);

impl fmt::Debug for PrimaryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A primary, and what it keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    /// Which one.
    pub id: PrimaryId,
    /// The slots it keeps, first and last of each range; `None` where it keeps everything.
    pub slots: Option<Vec<(u16, u16)>>,
}

impl Primary {
    /// The one that keeps everything.
    pub const fn of_everything(id: PrimaryId) -> Self {
        Self { id, slots: None }
    }

    /// One that keeps these slots, given as the first and the last of each range.
    pub const fn of_slots(id: PrimaryId, ranges: Vec<(u16, u16)>) -> Self {
        Self { id, slots: Some(ranges) }
    }

    /// Does one of these keep each slot that it keeps?
    pub fn is_replaced_by(&self, others: &[Self]) -> bool {
        let Some(own) = &self.slots else { return !others.is_empty() };
        let is_kept = |slot: u16| {
            let keeps = |other: &Self| other.holds_slot(|| slot);
            others.iter().any(keeps)
        };
        own.iter().all(|(first, last)| (*first..=*last).all(is_kept))
    }

    /// Do both keep some slot?
    pub fn overlaps(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (&self.slots, &other.slots) else { return true };
        own.iter().any(|(first, last)| others.iter().any(|(from, to)| first <= to && from <= last))
    }

    /// Does it keep this slot? The slot is computed only where there is more than one primary
    /// that could keep it.
    pub fn holds_slot(&self, slot: impl FnOnce() -> u16) -> bool {
        let ranges = self.slots.as_deref();
        ranges.is_none_or(|ranges| {
            let slot = slot();
            ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot))
        })
    }
}
