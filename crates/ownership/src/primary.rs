//! The primaries that keep the store's data, so that a failover can be detected.

use std::fmt;

/// One run of a primary. Another id in its place means a failover, a restart or a move: the last
/// writes may be lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrimaryId(pub u128);

impl fmt::Debug for PrimaryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A primary and its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    /// The id of its run.
    pub id: PrimaryId,
    /// The slots that it keeps, first and last of each range; `None` if it keeps every slot.
    pub slots: Option<Vec<(u16, u16)>>,
}

impl Primary {
    /// A primary that keeps every slot.
    pub const fn of_everything(id: PrimaryId) -> Self {
        Self { id, slots: None }
    }

    /// A primary that keeps these slots, given as the first and the last of each range.
    pub const fn of_slots(id: PrimaryId, ranges: Vec<(u16, u16)>) -> Self {
        Self { id, slots: Some(ranges) }
    }

    /// Is each of its slots kept by one of these?
    pub fn is_replaced_by(&self, others: &[Self]) -> bool {
        let Some(own) = &self.slots else { return !others.is_empty() };
        let is_kept = |slot: u16| {
            let keeps = |other: &Self| other.holds_slot(|| slot);
            others.iter().any(keeps)
        };
        own.iter().all(|(first, last)| (*first..=*last).all(is_kept))
    }

    /// Do both keep a common slot?
    pub fn overlaps(&self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (&self.slots, &other.slots) else { return true };
        own.iter().any(|(first, last)| others.iter().any(|(from, to)| first <= to && from <= last))
    }

    /// Does it keep this slot? The slot is computed only if more than one primary could keep it.
    pub fn holds_slot(&self, slot: impl FnOnce() -> u16) -> bool {
        let ranges = self.slots.as_deref();
        ranges.is_none_or(|ranges| {
            let slot = slot();
            ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot))
        })
    }
}
