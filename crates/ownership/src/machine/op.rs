//! The store operations that an [`Ownership`](super::Ownership) returns.

use crate::{Batch, Expected, Owner, PrimaryId, Record, State, StateExtension, Token};

/// The next operation on the store.
#[derive(Clone, Debug)]
pub enum Op {
    /// Append to the log.
    Append(Batch),
    /// Write record and log again.
    Reassert(Record, Batch),
    /// Save the state.
    Save {
        /// The token of the owner.
        token: Token,
        /// What to save.
        state: State,
    },
    /// Add what changed to the state.
    ExtendState {
        /// The token of the owner.
        token: Token,
        /// What to add.
        extension: StateExtension,
    },
    /// Claim the session.
    Claim {
        /// The expected owner.
        expected: Expected,
        /// The new owner.
        new: Owner,
        /// The primary to claim at.
        at: Option<PrimaryId>,
    },
    /// Release the session.
    Release {
        /// The token of the owner.
        token: Token,
        /// The primary to release at.
        at: Option<PrimaryId>,
    },
    /// End the session.
    End {
        /// The token of the owner.
        token: Token,
    },
}
