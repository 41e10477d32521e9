//! Who keeps the store's data right now, so that a failover can be seen.

use std::fmt;

use protocol::SessionId;

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
    pub(crate) slots: Option<Vec<(u16, u16)>>,
}

impl Primary {
    /// The one that keeps everything.
    pub const fn of_everything(id: PrimaryId) -> Self {
        Self { id, slots: None }
    }

    /// Does it keep this session?
    pub fn holds(&self, session: &SessionId) -> bool {
        self.holds_slot(|| crate::redis::slot_of(session))
    }

    /// Does it keep the leases of nodes?
    pub fn holds_leases(&self) -> bool {
        self.holds_slot(crate::redis::slot_of_leases)
    }

    /// The slot is asked for only where there is more than one that could keep it.
    fn holds_slot(&self, slot: impl FnOnce() -> u16) -> bool {
        let ranges = self.slots.as_deref();
        ranges.is_none_or(|ranges| {
            let slot = slot();
            ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot))
        })
    }
}
