//! How long a session's record lives after each kind of write.

use std::time::Duration;

/// How long the record lives after each kind of write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifetimes {
    /// While it has an owner, which refreshes it well before.
    pub(crate) owned: Seconds,
    /// After its owner released it.
    pub(crate) released: Seconds,
    /// As a tombstone.
    pub(crate) ended: Seconds,
}

/// A time in whole seconds, rounded up; beyond 136 years, as much as that. Each session keeps
/// three, so they are small.
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
