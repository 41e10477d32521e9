//! How long the store keeps a session's record after each kind of write.

use std::time::Duration;

/// The time to live of a record after each kind of write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetimes {
    /// While it has an owner, which refreshes it in time.
    pub(crate) owned: Seconds,
    /// After its owner released it.
    pub(crate) released: Seconds,
    /// As a tombstone.
    pub(crate) ended: Seconds,
}

/// A time in whole seconds, rounded up, at most 136 years. Small, since each session keeps three.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seconds(u32);

impl From<Duration> for Seconds {
    fn from(time: Duration) -> Self {
        let begun = u64::from(time.subsec_nanos() > 0);
        Self(u32::try_from(time.as_secs().saturating_add(begun)).unwrap_or(u32::MAX))
    }
}

impl From<Seconds> for Duration {
    fn from(Seconds(seconds): Seconds) -> Self {
        Self::from_secs(seconds.into())
    }
}
