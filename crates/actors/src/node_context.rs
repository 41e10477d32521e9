//! The context that all sessions of a node share: bounds, store, servers, and the membership in the
//! cluster.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock};

use backends::Backends;
use backends::http::Vault;
use budget::Budget;
use cluster::Cluster;
use ownership::machine::LeaseSnapshot;
use protocol::SessionId;
use store::{Digest, Store};
use telemetry::Traces;
use tenants::Principal;

use crate::limits::NodeLimits;
use crate::link_seal::LinkSeal;
use crate::principal_digest::PrincipalDigests;
use crate::reply::Bounds;
use crate::routing::revocation_codec::reads_revocations;
use crate::sleeping_bytes::SleepingBytes;
use crate::tombstones::NodeTombstones;
use crate::{Care, SessionBytes, Settings, clock};

/// The context that all sessions of a node share. It does not change after the start of the node.
pub(crate) struct NodeContext {
    pub(crate) settings: Settings,
    /// `settings.session`, shared by the sessions.
    pub(crate) limits: Arc<conversation::Limits>,
    /// The bounds of each connection's reply queue.
    pub(crate) bounds: Bounds,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) backends: Backends,
    pub(crate) cluster: Cluster,
    /// What tenants may have in the whole cluster.
    pub(crate) cluster_limits: NodeLimits,
    /// The budget of the bytes that sessions keep.
    pub(crate) session_bytes: SessionBytes,
    /// The server processes of the tenants, if they are counted.
    pub(crate) children: Option<Budget>,
    /// Begins the spans of requests that are traced.
    pub(crate) traces: Traces,
    /// What the sessions that fell asleep here keep in the store.
    pub(crate) sleeping_bytes: SleepingBytes,
    /// The tombstones of sessions that ended here recently.
    pub(crate) tombstones: Arc<NodeTombstones>,
    /// The digests of principals in records.
    pub(crate) digests: PrincipalDigests,
    /// Seals what links save in records.
    pub(crate) link_seal: LinkSeal,
    /// Where the tokens of users are kept.
    pub(crate) vault: Arc<dyn Vault>,
    /// The settings for each tenant's server; other tenants have the default.
    cares: RwLock<HashMap<Arc<str>, Care>>,
    /// The suffix of session ids that this node creates: a hint for people, never trusted.
    tag: Box<str>,
}

/// What a context is made of. See [`NodeContext`].
pub(crate) struct ContextParts {
    pub(crate) settings: Settings,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) backends: Backends,
    pub(crate) cares: HashMap<Arc<str>, Care>,
    pub(crate) cluster: Cluster,
    pub(crate) session_bytes: SessionBytes,
    pub(crate) children: Option<Budget>,
    pub(crate) digests: PrincipalDigests,
    pub(crate) link_seal: LinkSeal,
    pub(crate) vault: Arc<dyn Vault>,
    pub(crate) traces: Traces,
}

impl NodeContext {
    pub(crate) fn new(parts: ContextParts) -> Self {
        let ContextParts { settings, cares, .. } = parts;
        Self {
            limits: Arc::new(settings.limits()),
            bounds: settings.sink_bounds(),
            tag: tag(&settings.node_tag),
            settings,
            store: parts.store,
            backends: parts.backends,
            cluster_limits: NodeLimits::new(parts.cluster.is_alone()),
            cluster: parts.cluster,
            session_bytes: parts.session_bytes,
            children: parts.children,
            traces: parts.traces,
            sleeping_bytes: SleepingBytes::default(),
            tombstones: Arc::default(),
            digests: parts.digests,
            link_seal: parts.link_seal,
            vault: parts.vault,
            cares: RwLock::new(cares),
        }
    }

    /// The generation of this node's lease if the node may act for its sessions now. No round trip.
    pub(crate) fn valid_lease_generation(&self) -> Option<u64> {
        self.cluster.valid_lease_generation()
    }

    /// The state of the lease and the store for the ownership of a session, with the time of the
    /// sessions' clock.
    pub(crate) fn lease_snapshot(&self, session: &SessionId) -> LeaseSnapshot {
        LeaseSnapshot { now: clock::now().0, ..self.cluster.lease_snapshot(session) }
    }

    /// When this principal of a tenant was revoked last; 0: never.
    pub(crate) fn revoked_ms(&self, tenant: &str, principal: &Principal) -> u64 {
        self.cluster.revocations().list().revoked_ms(tenant, principal.name())
    }

    /// The digest of a principal for the record of a new session, which came after its last revocation.
    pub(crate) fn digest_for_record(&self, principal: &Principal, revoked_ms: u64) -> Digest {
        // Nodes of the previous program recognise no other digest.
        let plain = !self.cluster.all_peers_read(reads_revocations);
        self.digests.make(principal, revoked_ms, plain)
    }

    /// The settings for a tenant's server.
    pub(crate) fn care(&self, tenant: &str) -> Care {
        let cares = self.cares.read().unwrap_or_else(PoisonError::into_inner);
        cares.get(tenant).copied().unwrap_or_default()
    }

    /// Replaces the settings for all tenants' servers. A session keeps those that it began with.
    pub(crate) fn replace_cares(&self, cares: HashMap<Arc<str>, Care>) {
        // The table is replaced as a whole, so it is right in any case.
        *self.cares.write().unwrap_or_else(PoisonError::into_inner) = cares;
    }

    /// The suffix of session ids that this node creates.
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
        tracing::warn!(
            tag = named,
            "ignored sessions.node_tag: it must be 1 to 32 letters, digits and `_`; the tag is \
             random"
        );
    }
    // The tag is not secret; without random bytes from the operating system, the hasher's are
    // sufficient.
    let random = getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(0));
    format!("{:08x}", random >> 32).into()
}

/// Whether the text is a valid suffix of session ids.
fn is_tag(text: &str) -> bool {
    let fits = (1..=32).contains(&text.len());
    fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
