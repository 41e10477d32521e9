//! What every session of the node shares: its bounds, its store, its servers, and the node's
//! place in the cluster.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use backends::Backends;
use cluster::Cluster;
use ownership::machine::LeaseSnapshot;
use protocol::SessionId;
use store::Store;

use crate::reply::Bounds;
use crate::tombstones::NodeTombstones;
use crate::{Care, Settings, clock};

/// What every session of the node shares. Nothing here changes after the node has started.
pub(crate) struct NodeContext {
    pub(crate) settings: Settings,
    /// `settings.session`, shared by the sessions.
    pub(crate) limits: Arc<conversation::Limits>,
    /// The bounds of each connection's reply queue.
    pub(crate) bounds: Bounds,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) backends: Backends,
    pub(crate) cluster: Cluster,
    /// Sessions that ended here a short while ago.
    pub(crate) tombstones: Arc<NodeTombstones>,
    /// The care for each tenant's server; a tenant that is not in it has the default.
    cares: HashMap<Arc<str>, Care>,
    /// The suffix of the session ids that are made here: a hint for people, never trusted.
    tag: Box<str>,
}

impl NodeContext {
    pub(crate) fn new(
        settings: Settings,
        store: Arc<dyn Store>,
        backends: Backends,
        cares: HashMap<Arc<str>, Care>,
        cluster: Cluster,
    ) -> Self {
        Self {
            limits: Arc::new(settings.limits()),
            bounds: settings.sink_bounds(),
            tag: tag(&settings.node_tag),
            settings,
            store,
            backends,
            cluster,
            tombstones: Arc::default(),
            cares,
        }
    }

    /// The generation of this node's lease, where the node may act for its sessions now. No round
    /// trip.
    pub(crate) fn valid_lease_generation(&self) -> Option<u64> {
        self.cluster.valid_lease_generation()
    }

    /// What the node knows now that matters to its ownership of a session, by the clock of
    /// sessions.
    pub(crate) fn lease_snapshot(&self, session: &SessionId) -> LeaseSnapshot {
        LeaseSnapshot { now: clock::now().0, ..self.cluster.lease_snapshot(session) }
    }

    /// The care for a tenant's server.
    pub(crate) fn care(&self, tenant: &str) -> Care {
        self.cares.get(tenant).copied().unwrap_or_default()
    }

    /// The suffix of the session ids that are made here.
    pub(crate) fn tag(&self) -> &str {
        &self.tag
    }
}

/// The tag that the settings name, or a random one.
fn tag(named: &str) -> Box<str> {
    if is_tag(named) {
        return named.into();
    }
    if !named.is_empty() {
        tracing::warn!(tag = named, "`node_tag` is not 1 to 32 letters, digits and `_`");
    }
    // It is no secret; where the system has no randomness, the hasher's will do.
    let random = getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(0));
    format!("{:08x}", random >> 32).into()
}

/// Can session ids end with it?
fn is_tag(text: &str) -> bool {
    let fits = (1..=32).contains(&text.len());
    fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
