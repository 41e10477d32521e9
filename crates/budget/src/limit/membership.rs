//! Which nodes an owner sees, and whether limits may have come to it from another owner lately.

use std::time::Duration;

use super::Member;

/// For so long after a change of the nodes, a limit that its new owner does not know may have had shares.
const LATELY: Duration = Duration::from_secs(1);

/// The live nodes as one node sees them.
#[derive(Clone, Debug, Default)]
pub struct Membership {
    nodes: Vec<u64>,
    changed_at: Option<Duration>,
}

impl Membership {
    /// Notes the nodes that are live now. To be called at least once in an interval, and before each
    /// report.
    pub fn note(&mut self, members: &[Member], now: Duration) {
        let is_live = |node: &u64| members.iter().any(|member| member.node == *node);
        if self.nodes.len() == members.len() && self.nodes.iter().all(is_live) {
            return;
        }
        // A node that is the only one so far has all limits, and no other node had one before.
        let is_first_and_alone = self.nodes.is_empty() && members.len() <= 1;
        if !is_first_and_alone {
            self.changed_at = Some(now);
        }
        self.nodes = members.iter().map(|member| member.node).collect();
    }

    /// Whether a node was lost or joined lately. A lost one may have owned limits; of one that joined, or
    /// joined again, this node may be the one that joined, and the others owned limits that are its own now.
    pub fn has_changed(&self, now: Duration) -> bool {
        self.changed_at.is_some_and(|at| now.saturating_sub(at) <= LATELY)
    }
}
