//! The errors of a cluster operation.

use ownership::location::Undecided;
use peering::TlsError;

/// The reason why a cluster operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed over a moment ago, and owners have not written their sessions again yet.
    #[error(
        "the store failed over a moment ago; owners are still writing their sessions again; retry later"
    )]
    Stabilisation,
    /// The store was unreachable a moment ago. A missing lease may belong to a node that could not
    /// renew it either.
    #[error(
        "the store was unreachable a moment ago; other nodes may still be renewing their leases"
    )]
    OutOfReach,
    /// Another node has claimed the session: locate it again.
    #[error("another node claimed the session; locate it again")]
    Taken,
    /// The store cannot be reached. A retry may succeed.
    #[error("the store is unavailable")]
    Store(#[source] store::Error),
    /// This node holds no lease now, so it cannot decide that another node is gone. A retry may
    /// succeed once the lease is renewed.
    #[error("this node holds no valid lease; retry once it is renewed")]
    NoLease,
    /// The listener for peers cannot bind its address.
    #[error("{address} cannot be listened on; free it, or choose another with `cluster.listen`")]
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
