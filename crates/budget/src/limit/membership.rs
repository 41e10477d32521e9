//! Which nodes an owner sees, and whether one of them was lost lately.

use std::time::Duration;

use super::Member;

/// For so long after the loss of a node, a limit that its new owner does not know may have had shares.
const LATELY: Duration = Duration::from_secs(1);

/// The live nodes as one node sees them.
#[derive(Clone, Debug, Default)]
pub struct Membership {
    nodes: Vec<u64>,
    lost_at: Option<Duration>,
}

impl Membership {
    /// Notes the nodes that are live now. To be called at least once in an interval, and before each
    /// report.
    pub fn note(&mut self, members: &[Member], now: Duration) {
        let is_live = |node: &u64| members.iter().any(|member| member.node == *node);
        if self.nodes.len() == members.len() && self.nodes.iter().all(is_live) {
            return;
        }
        if !self.nodes.iter().all(is_live) {
            self.lost_at = Some(now);
        }
        self.nodes = members.iter().map(|member| member.node).collect();
    }

    /// Whether a node was lost lately: it may have owned limits.
    pub fn has_lost_one(&self, now: Duration) -> bool {
        self.lost_at.is_some_and(|at| now.saturating_sub(at) <= LATELY)
    }
}
