//! Why the store refused an operation, and what its caller does next.

use std::io;

use crate::{Incarnation, Owner};

/// Why an operation was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be reached or did not answer in time. Whether it performed the operation
    /// is unknown; sending the same operation again is safe.
    #[error("the store is unavailable; try again")]
    Unavailable(#[source] io::Error),
    /// The store holds no such session: never made, expired, evicted, or forgotten by a
    /// failover. The owner of the session re-asserts it; for any other caller the session does
    /// not exist.
    #[error("the session is not in the store; its owner may re-assert it")]
    Missing,
    /// The session belongs to another token. If that token is older than the caller's
    /// ([`crate::Record::came_after`]), the store forgot a claim: re-assert. Otherwise the caller
    /// was deposed and must stop.
    #[error("the session is owned by token {} of node {}; stop serving it", .0.token, .0.node)]
    Fenced(Owner),
    /// The session was released under the caller's own token. No owner acts under that token
    /// again; claim the session with a new one.
    #[error("the session was released under this token; claim it with a new one")]
    Released,
    /// The session has ended.
    #[error("the session has ended; open a new one")]
    Ended,
    /// Entries are missing before the batch. The owner sends again everything after `last` that
    /// can still be replayed.
    #[error("the log has a hole before the batch; send again what follows entry {last:?}")]
    Hole {
        /// The last number that the log holds; `None` if it is empty.
        last: Option<u64>,
    },
    /// This incarnation was marked dead. The process stops; a new one gets a new incarnation.
    #[error("this incarnation was marked dead by {by}; start a new one")]
    MarkedDead {
        /// The node that marked it.
        by: Incarnation,
    },
    /// The caller's lease has expired. It renews the lease before it writes about other nodes.
    #[error("this incarnation holds no lease; renew it first")]
    LeaseGone,
}
