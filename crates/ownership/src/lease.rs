//! Leases: a node may act as an owner only while it holds one.

use std::sync::Arc;

use crate::{Incarnation, RevocationGeneration};

/// What a node writes about itself with each renewal of its lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// Rises with each renewal of the incarnation; a retried renewal keeps its number.
    pub renewal: u64,
    /// The newest renewal whose answer the node has; 0: none. In a lease that was read from a
    /// store it is 0: only the renewal carries it.
    pub acknowledged: u64,
    /// The node's name, for operators.
    pub name: Arc<str>,
    /// The address for its peers; empty if there are none.
    pub address: Arc<str>,
    /// The node drains: it takes no new sessions and releases those that it has.
    pub draining: bool,
    /// How many sessions it keeps.
    pub load: u64,
    /// The peers with which it has a live link. At most as many as there are nodes.
    pub linked: Vec<Incarnation>,
}

/// The answer to a renewal. A retried renewal gets the answer of its first execution. A lease
/// that had expired counts as expired until the node has acknowledged that: the answer to the
/// renewal that found no lease may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Did the lease exist without a gap since the renewal that the node has acknowledged? If
    /// not, other nodes may have seen that it had expired: the node claims every session again
    /// before it acts for it.
    pub was_there: bool,
    /// The version of the store's revocations. A node that does not have these reads them before the
    /// renewal counts.
    pub revocations: RevocationGeneration,
}

/// The state of an incarnation.
#[derive(Clone, Debug, PartialEq)]
pub enum Presence {
    /// It holds a lease.
    Live(Lease),
    /// It was marked dead, or has left, and never acts again.
    Dead {
        /// The node that marked it; the node itself if it has left.
        by: Incarnation,
    },
    /// It holds no lease: the lease expired, or never existed.
    Gone,
}

/// The result of marking an incarnation dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// It is marked; other nodes may claim its sessions.
    Dead,
    /// Not marked: this live peer still has a link to it.
    LinkedTo(Incarnation),
    /// Not marked: it holds another lease than the one at which it was found dead.
    Renewed,
}
