//! Whether the node should be sent work, and if not, why.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The reasons for which the node is not ready; with none left, it is. Cheap to clone,
/// all clones are one. Reasons are written in the code, so there are only so many.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<BTreeSet<&'static str>>>);

impl Readiness {
    /// Not ready, for one reason.
    pub fn waiting_for(reason: &'static str) -> Self {
        let readiness = Self::default();
        readiness.hold(reason);
        readiness
    }

    /// From now on not ready for this reason, whatever others there are.
    pub fn hold(&self, reason: &'static str) {
        self.reasons_mut(|reasons| reasons.insert(reason));
    }

    /// This reason is gone.
    pub fn clear(&self, reason: &'static str) {
        self.reasons_mut(|reasons| reasons.remove(reason));
    }

    /// Why the node is not ready; empty when it is.
    pub fn reasons(&self) -> Vec<&'static str> {
        self.reasons_mut(|reasons| reasons.iter().copied().collect())
    }

    fn reasons_mut<T>(&self, change: impl FnOnce(&mut BTreeSet<&'static str>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
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
}
