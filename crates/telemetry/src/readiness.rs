//! Whether the node is ready for requests, and if not, why.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::metrics;

/// The reasons why the node is not ready. The node is ready if there are none. Remarks do not
/// affect readiness. Cheap to clone; all clones share one state. Reasons and remarks are
/// constants in the code, which bounds their number.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<Said>>);

#[derive(Debug, Default)]
struct Said {
    reasons: BTreeSet<&'static str>,
    remarks: BTreeSet<&'static str>,
}

impl Readiness {
    /// Creates a state that is not ready for one reason.
    pub fn waiting_for(reason: &'static str) -> Self {
        let readiness = Self::default();
        readiness.hold(reason);
        readiness
    }

    /// Adds a reason why the node is not ready.
    pub fn hold(&self, reason: &'static str) {
        self.change(|said| said.reasons.insert(reason));
    }

    /// Removes a reason.
    pub fn clear(&self, reason: &'static str) {
        self.change(|said| said.reasons.remove(reason));
    }

    /// Adds a remark if `is_so`, otherwise removes it. The readiness endpoint shows remarks also
    /// while the node is ready.
    pub fn remark(&self, remark: &'static str, is_so: bool) {
        self.change(|said| match is_so {
            true => said.remarks.insert(remark),
            false => said.remarks.remove(remark),
        });
    }

    /// The reasons why the node is not ready; empty if it is ready.
    pub fn reasons(&self) -> Vec<&'static str> {
        self.change(|said| said.reasons.iter().copied().collect())
    }

    /// The remarks.
    pub fn remarks(&self) -> Vec<&'static str> {
        self.change(|said| said.remarks.iter().copied().collect())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Said) -> T) -> T {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut said);
        metrics::READY.set(said.reasons.is_empty().into());
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_when_the_last_reason_is_gone() {
        let readiness = Readiness::waiting_for("starting");
        readiness.hold("draining");
        readiness.clone().clear("starting");
        assert_eq!(readiness.reasons(), ["draining"]);
        readiness.clear("draining");
        assert!(readiness.reasons().is_empty());
    }

    #[test]
    fn a_remark_keeps_no_work_away() {
        let readiness = Readiness::default();
        readiness.remark("it is cold", true);
        assert_eq!((readiness.reasons().len(), readiness.remarks()), (0, vec!["it is cold"]));
        readiness.remark("it is cold", false);
        assert!(readiness.remarks().is_empty());
    }
}
