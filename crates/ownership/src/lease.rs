//! Leases: a node may act as an owner only while it holds one.

use std::sync::Arc;

use crate::Incarnation;

/// What a node says about itself each time it renews its lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// Which life of which node.
    pub incarnation: Incarnation,
    /// Rises with each renewal of the incarnation; a renewal that is sent again keeps it.
    pub renewal: u64,
    /// The newest renewal whose answer the node has; 0: none. In a lease that was read from a
    /// store it is 0: only the renewal carries it.
    pub acknowledged: u64,
    /// The node's name, for people.
    pub name: Arc<str>,
    /// Where its peers reach it. Empty where there are none.
    pub address: Arc<str>,
    /// It takes no new sessions and is giving up those it has.
    pub draining: bool,
    /// How many sessions it keeps.
    pub load: u64,
    /// The peers it has a live link to. At most as many as there are nodes.
    pub linked: Vec<Incarnation>,
}

/// A lease was renewed. A renewal that is repeated gets the answer of its first execution.
/// A lease that was gone counts as gone until the node knows it: the answer to the
/// renewal that found no lease may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Was it there all the time since the renewal that the node has acknowledged? If not,
    /// others may have seen it gone: every session is to be claimed anew before the node acts
    /// for it again.
    pub was_there: bool,
}

/// What is known of an incarnation.
#[derive(Clone, Debug, PartialEq)]
pub enum Presence {
    /// It holds a lease.
    Live(Lease),
    /// It was marked dead, or has left, and will never act again.
    Dead {
        /// Who marked it; itself where it has left.
        by: Incarnation,
    },
    /// It holds no lease: it lapsed, or never was.
    Gone,
}

/// What came of marking an incarnation dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// It is marked; its sessions may be claimed.
    Dead,
    /// Not marked: this live peer still has a link to it.
    LinkedTo(Incarnation),
    /// Not marked: it has another lease than the one that it was found dead by.
    Renewed,
}
