//! The operation in flight, and the reason for a re-assertion.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InFlight {
    /// Once it succeeds, the log holds everything below this number.
    Append {
        end: u64,
    },
    Reassert(Box<Reassertion>),
    /// Once it succeeds, the record holds the state that entries below this number belong to.
    Save {
        end: u64,
        /// The version of that state.
        version: u64,
    },
    /// The lease generation and the failover generation in which it was sent.
    Claim {
        lease_generation: u64,
        failover_generation: u64,
    },
    Release {
        /// A release was sent before.
        again: bool,
    },
    End,
}

/// A re-assertion that is in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reassertion {
    /// The failover generation in which it was sent.
    pub(super) failover_generation: u64,
    /// The version of the state that it holds.
    pub(super) version: u64,
    /// Once it succeeds, the log holds everything below this number.
    pub(super) end: u64,
    /// It writes a tombstone.
    pub(super) ends: bool,
}

/// Whether an operation is in flight.
#[derive(Debug)]
pub(super) enum Phase {
    Idle,
    InFlight(InFlight),
    /// The ownership has ended: no operation follows.
    Over,
}

/// Whether record and log have to be re-asserted although no failover was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rewrite {
    No,
    /// Only under the lease that the session was claimed under: another node may have ended it
    /// since.
    UnderLease,
    /// In any case: the record fell back to a former token, so it was never ended since.
    FellBack,
}
