//! The errors of a cluster operation.

use ownership::location::Undecided;
use peering::TlsError;

/// The reason why a cluster operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed over a moment ago, and owners have not written their sessions again yet.
    #[error("the store failed over; what it may have forgotten is still being put back")]
    Stabilisation,
    /// The store was unreachable a moment ago. A missing lease may belong to a node that could not
    /// renew it either.
    #[error("the store was out of reach; other nodes may still be renewing their leases")]
    OutOfReach,
    /// Another node has claimed the session: locate it again.
    #[error("the session was claimed by another")]
    Taken,
    /// The store cannot be reached. A retry may succeed.
    #[error("the store is unavailable")]
    Store(#[source] store::Error),
    /// This node holds no lease now, so it cannot decide that another node is gone. A retry may
    /// succeed once the lease is renewed.
    #[error("this node holds no lease now; try again when it is renewed")]
    NoLease,
    /// The listener for peers cannot bind its address.
    #[error("the peer link cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A setting is wrong; the text names it and the remedy.
    #[error("{0}")]
    Settings(String),
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        Self::Settings(error.to_string())
    }
}

impl From<Undecided> for Error {
    fn from(undecided: Undecided) -> Self {
        match undecided {
            Undecided::Stabilisation => Self::Stabilisation,
            Undecided::OutOfReach => Self::OutOfReach,
            Undecided::NoLease => Self::NoLease,
        }
    }
}
