//! What is under way in the store, and why record and ring are to be written anew.

use crate::{Expected, Owner};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Under {
    /// Once it is done, nothing below this number is missing.
    Append {
        end: u64,
    },
    Reassert(Box<Reasserting>),
    /// Once it is done, the record holds the state that entries below this number stand for.
    Save {
        end: u64,
    },
    /// In which lease generation, and in which failover generation, it was sent.
    Claim {
        lease_generation: u64,
        failover_generation: u64,
    },
    /// Was one sent before?
    Release {
        again: bool,
    },
    End,
}

/// A claim that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claiming {
    /// The failover generation it was sent in.
    pub(super) failover_generation: u64,
    pub(super) expected: Expected,
    pub(super) new: Owner,
}

/// A re-assertion that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reasserting {
    /// The failover generation it was sent in.
    pub(super) failover_generation: u64,
    /// The version of the state that it holds.
    pub(super) version: u64,
    /// Once it is done, nothing below this number is missing.
    pub(super) end: u64,
    /// It says that the session is over.
    pub(super) ends: bool,
}

/// Whether record and ring have to be written anew although no failover was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anew {
    No,
    /// Only under the lease that the session was claimed under: others may have ended it since.
    UnderLease,
    /// In any case: the record fell back to a former token, so it was never ended since.
    Yes,
}
