//! The backends of a catalog. Each can be replaced while sessions use the catalog.

use std::sync::{Arc, PoisonError, RwLock};

use backends::Backend;

/// The backends, in the order of the members.
pub(crate) struct Slots(Box<[RwLock<Slot>]>);

/// A backend, and how many there were before it.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) number: u64,
}

impl Slots {
    pub(crate) fn new(backends: impl IntoIterator<Item = Arc<dyn Backend>>) -> Self {
        let slot = |backend| RwLock::new(Slot { backend, number: 0 });
        Self(backends.into_iter().map(slot).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The backend that links are opened to now.
    pub(crate) fn get(&self, at: usize) -> Slot {
        // No code panics under the lock.
        self.0[at].read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All backends that links are opened to now.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<dyn Backend>> + '_ {
        (0..self.len()).map(|at| self.get(at).backend)
    }

    /// Has later links opened to another backend. Returns the former one.
    pub(crate) fn replace(&self, at: usize, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let mut slot = self.0[at].write().unwrap_or_else(PoisonError::into_inner);
        slot.number += 1;
        std::mem::replace(&mut slot.backend, backend)
    }
}
