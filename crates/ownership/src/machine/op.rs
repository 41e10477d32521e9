//! The store operations that an [`Ownership`](super::Ownership) asks for.

use crate::{Batch, Expected, Owner, PrimaryId, Record, State, Token};

/// What to do next in the store.
#[derive(Clone, Debug)]
pub enum Op {
    /// Append to the log.
    Append(Batch),
    /// Write record and ring anew.
    Reassert(Record, Batch),
    /// Save the state.
    Save {
        /// The token of the owner.
        token: Token,
        /// What to save.
        state: State,
    },
    /// Claim the session.
    Claim {
        /// From whom.
        expected: Expected,
        /// As whom.
        new: Owner,
        /// At which primary.
        at: Option<PrimaryId>,
    },
    /// Give the session up.
    Release {
        /// The token of the owner.
        token: Token,
        /// At which primary.
        at: Option<PrimaryId>,
    },
    /// End it.
    End {
        /// The token of the owner.
        token: Token,
    },
}
