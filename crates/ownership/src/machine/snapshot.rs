//! What a node knows about time, its lease and the store when it calls
//! [`Ownership::next`](super::Ownership::next).

use crate::PrimaryId;

/// How far the stabilisation of the session's primary is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stabilisation {
    /// First half: the primary may lack what owners have yet to re-assert.
    First,
    /// Second half: owners had time to re-assert their sessions.
    Second,
    /// Done: every session that an owner re-asserts is there.
    Done,
}

/// In which failover generations another node may have claimed the session: those in which the
/// session's primary was there for the first half of stabilisation, as this node saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimable {
    /// The newest of them; 0 for none.
    pub newest: u64,
    /// The newest of those of the primaries before this one; 0 for none.
    pub former: u64,
}

/// What the node knows at one moment.
#[derive(Clone, Copy, Debug)]
pub struct LeaseSnapshot {
    /// Milliseconds of the node's clock.
    pub now: u64,
    /// The generation of its lease, where it may act.
    pub lease_generation: Option<u64>,
    /// Rises with each failover of the session's primary that was seen.
    pub failover_generation: u64,
    /// How far the stabilisation after the newest failover is.
    pub stabilisation: Stabilisation,
    /// In which failover generations another node may have claimed the session.
    pub claimable: Claimable,
    /// The primary of which this is known: nothing is claimed or released at another.
    pub primary: Option<PrimaryId>,
}

/// The lease generation and the failover generation in which a node became the owner of a session,
/// read before the create or the claim was sent. So the owner notices each failover, and each loss
/// of the lease, from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// The generation of the node's lease.
    pub lease_generation: u64,
    /// The failover generation of the session's primary.
    pub failover_generation: u64,
}
