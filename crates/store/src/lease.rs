//! The right of a node to act as an owner at all.

use std::sync::Arc;

use crate::Incarnation;

/// What a node says about itself each time it renews its lease.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// Which life of which node.
    pub incarnation: Incarnation,
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

/// A lease was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Was it still there? If not, others may have seen it gone: every session is to be
    /// claimed anew before the node acts for it again.
    pub was_there: bool,
}

/// What is known of an incarnation.
#[derive(Clone, Debug, PartialEq)]
pub enum Presence {
    /// It holds a lease.
    Live(Lease),
    /// It was marked dead, and will never act again.
    Dead {
        /// Who marked it.
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
}
