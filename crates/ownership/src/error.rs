//! Why the store did not do it, and so whose turn it is.

use std::io;

use crate::{Incarnation, Owner};

/// Why an operation was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached or did not answer in time. Whether it did the thing
    /// is unknown; sending the same again is safe.
    #[error("the store is unavailable; try again")]
    Unavailable(#[source] io::Error),
    /// The store holds no such session: never made, expired, evicted, or forgotten by a
    /// failover. The owner of the session re-asserts it; for any other caller the session does
    /// not exist.
    #[error("the session is not in the store; its owner may re-assert it")]
    Missing,
    /// The session belongs to another token. Where that is one from before the
    /// caller's own ([`crate::Record::came_after`]), a claim was forgotten: re-assert.
    /// Else the caller has been deposed, and stops.
    #[error("the session is owned by token {} of node {}; stop serving it", .0.token, .0.node)]
    Fenced(Owner),
    /// The session was released under the caller's own token. No owner acts under that token
    /// again; claim the session with a new one.
    #[error("the session was released under this token; claim it with a new one")]
    Released,
    /// The session is over.
    #[error("the session has ended; open a new one")]
    Ended,
    /// Entries are missing before the batch. Send again everything after `last` that
    /// can still be replayed.
    #[error("the log has a hole before the batch; send again what follows entry {last:?}")]
    Hole {
        /// The last number that the log holds; `None` where it holds nothing.
        last: Option<u64>,
    },
    /// This incarnation was marked dead. It stops, and comes back as a new one.
    #[error("this incarnation was marked dead by {by}; start a new one")]
    MarkedDead {
        /// Who marked it.
        by: Incarnation,
    },
    /// The caller's lease is gone. It renews before it says anything about others.
    #[error("this incarnation holds no lease; renew it first")]
    LeaseGone,
}
