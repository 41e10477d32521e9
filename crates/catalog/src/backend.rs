//! A backend that is made of several.

use std::sync::Arc;
use std::time::Duration;

use backends::{Backend, Link, LinkLimits};
use protocol::SessionId;

use crate::engine::Fan;
use crate::machine::Setup;
use crate::member::Members;
use crate::shared::Shared;

/// Several backends of a tenant as one.
pub struct Catalog {
    /// In the order of the members.
    backends: Arc<[Arc<dyn Backend>]>,
    shared: Arc<Shared>,
}

impl Catalog {
    /// The catalog of a tenant. `backends` are those of `members`, in their order. `start`: how long the
    /// start of one of them may take.
    pub fn new(
        tenant: &str,
        members: Members,
        backends: impl IntoIterator<Item = Arc<dyn Backend>>,
        start: Duration,
    ) -> Self {
        let start_ms = u64::try_from(start.as_millis()).unwrap_or(u64::MAX);
        let backends: Arc<[_]> = backends.into_iter().collect();
        assert_eq!(backends.len(), members.len(), "each member has a backend");
        let shared = Shared::new(Setup { name: tenant.into(), members, start_ms });
        Self { backends, shared: Arc::new(shared) }
    }

    fn link(&self, session: &SessionId, principal: Option<[u8; 32]>) -> Link {
        let (backends, shared) = (Arc::clone(&self.backends), Arc::clone(&self.shared));
        Link::in_place(LinkLimits::default(), |end, _receiver| {
            Box::new(Fan::new(backends, shared, (session.clone(), principal), end))
        })
    }
}

impl Backend for Catalog {
    fn open(&self, session: &SessionId) -> Link {
        self.link(session, None)
    }

    fn open_for(&self, session: &SessionId, principal: &[u8; 32]) -> Link {
        self.link(session, Some(*principal))
    }

    fn start_in_advance(&self) {
        self.backends.iter().for_each(|backend| backend.start_in_advance());
    }

    fn retire(&self) {
        self.backends.iter().for_each(|backend| backend.retire());
    }

    fn links(&self) -> usize {
        self.backends.iter().map(|backend| backend.links()).sum()
    }

    fn remarks(&self) -> Vec<String> {
        self.shared.remarks()
    }
}
