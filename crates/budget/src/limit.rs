//! Limits of the whole cluster, divided among its nodes without a round trip for each request.
//!
//! The owner of a limit is the live node that [`owner_of`] names. Each node reports its demand once in an
//! [`INTERVAL`] ([`Report`]) and gets a share ([`Grant`]), which is valid for [`VALID`]. Inside its share
//! a node decides by itself. A share that lapses falls to the limit divided by the number of nodes.
//!
//! The machines here have no clock and send nothing. A time is the duration since any fixed moment, the
//! same for all calls to one machine.

mod bucket;
mod count_node;
mod count_owner;
mod division;
mod membership;
mod rate_node;
mod rate_owner;
mod rendezvous;
#[cfg(test)]
mod tests;
mod thread_tokens;

use std::time::Duration;

pub use bucket::Bucket;
pub use count_node::CountOfNode;
pub use count_owner::CountOwner;
pub use division::divide;
pub use membership::Membership;
pub use rate_node::{RateOfNode, Refused};
pub use rate_owner::RateOwner;
pub use rendezvous::owner_of;
pub use thread_tokens::ThreadTokens;

/// The interval in which each node reports its demand.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// How long a share is valid, counted from its report.
pub const VALID: Duration = Duration::from_millis(300);

/// How long a linked node that has reported may stay away before it counts as one without demand. A
/// frozen node has lost its link by then, and a report takes one interval.
pub const SILENT: Duration = Duration::from_secs(3);

/// How long a limit without demand is still reported.
pub const IDLE: Duration = Duration::from_secs(2);

/// The rate below which shares are whole tokens.
pub const WHOLE_TOKENS_BELOW: f64 = 10.0;

/// A rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Tokens for each second.
    pub per_sec: f64,
    /// The most tokens that are kept for later.
    pub burst: f64,
}

impl Rate {
    /// Whether shares of the rate are whole tokens: a part of the rate would take too long to make one.
    pub fn is_of_whole_tokens(&self) -> bool {
        self.per_sec < WHOLE_TOKENS_BELOW
    }
}

/// What a node reports of a limit to its owner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Of a rate: the tokens for each second that the node's clients asked for. Of a count: how many
    /// more they asked for and did not get.
    pub demand: f64,
    /// Of a rate: the tokens that the node has left; negative if it has used more than it had. Of a
    /// count: how many the node holds.
    pub level: f64,
    /// Whether an owner has given the node a share since the demand began. A former owner may have given
    /// shares to others as well, which a new owner does not know.
    pub had_share: bool,
    /// The node has no demand any more, and gives back what it has left.
    pub is_last: bool,
    /// The number of the last share that the node has; 0 without one.
    pub applied: u64,
}

/// The share that an owner gives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Grant {
    /// Tokens for each second. Of a count: nothing.
    pub per_sec: f64,
    /// The most tokens that the node may keep. Of a count: the most that it may hold.
    pub max: f64,
    /// Tokens that the node gets at once; negative: that it gives back.
    pub tokens: f64,
    /// The owner has more, which it gives to the first node that needs it.
    pub has_more: bool,
    /// The number of the share at its owner. Of a count: 0.
    pub number: u64,
}

/// A live node, as the owner of a limit knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The node.
    pub node: u64,
    /// Whether its reports arrive. Otherwise it may use the limit divided by the number of nodes.
    pub is_linked: bool,
}
