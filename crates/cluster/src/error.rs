//! Why something could not be done.

use ownership::location::Undecided;
use peering::TlsError;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed over a moment ago, and what it forgot is not put back yet.
    #[error("the store failed over; what it may have forgotten is still being put back")]
    Stabilisation,
    /// The store was out of reach a moment ago, so a lease that is gone may be that of a node that
    /// could not renew it either.
    #[error("the store was out of reach; other nodes may still be renewing their leases")]
    OutOfReach,
    /// Another node has claimed the session: locate it again.
    #[error("the session was claimed by another")]
    Taken,
    /// The store cannot be reached; the same may succeed later.
    #[error("the store is unavailable")]
    Store(#[source] store::Error),
    /// This node holds no lease now, so it cannot say who is gone. The same may succeed
    /// when the lease is renewed.
    #[error("this node holds no lease now; try again when it is renewed")]
    NoLease,
    /// The peer link cannot listen there.
    #[error("the peer link cannot listen on {address}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
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
