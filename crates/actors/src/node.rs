//! The sessions of this node, as routing and take-over use them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cluster::Peer;
use conversation::Refusal;
use ownership::SessionRequest;
use protocol::{SessionId, UpstreamTokens};
use telemetry::Readiness;
use tenants::{Principal, Tenants};

use crate::arbiters::Arbiters;
use crate::held::HeldRequests;
use crate::limits::NodeLimits;
use crate::metrics;
use crate::node_context::NodeContext;
use crate::registry::{Lookup, Registry};
use crate::session::LocalReply;
use crate::takeover::OngoingClaims;

/// The sessions of this node and the state that their requests share.
pub(crate) struct Node {
    pub(crate) context: Arc<NodeContext>,
    pub(crate) registry: Arc<Registry>,
    /// The threads on which sessions may be placed.
    pub(crate) arbiters: Arbiters,
    /// The claims of this node in progress.
    pub(crate) claims: OngoingClaims,
    /// The requests that are held.
    pub(crate) held: HeldRequests,
    /// Whether the node is ready, for operators at other nodes; set once.
    pub(crate) readiness: OnceLock<Readiness>,
    /// The tenants of the settings, for operators at other nodes.
    pub(crate) tenants: OnceLock<Tenants>,
    /// The limits of the whole cluster at this node.
    pub(crate) limits: NodeLimits,
}

/// The result of sending a request to a session of this node.
pub(crate) enum Entry {
    /// The session has the request. The value yields its replies.
    Entered(LocalReply),
    /// The request was refused.
    Refused(Refusal),
    /// The session is not on this node, and the request was not started.
    Absent,
}

impl Node {
    /// Creates a node without sessions. `sessions_max` is the most sessions of each tenant.
    pub(crate) fn new(context: NodeContext, sessions_max: HashMap<Arc<str>, usize>) -> Self {
        let held = HeldRequests::new(context.settings.held_max);
        Self {
            limits: context.cluster_limits.clone(),
            registry: Arc::new(Registry::new(
                context.cluster.load(),
                context.settings.sessions_max,
                sessions_max.into_iter(),
            )),
            context: Arc::new(context),
            arbiters: Arbiters::default(),
            claims: OngoingClaims::default(),
            held,
            readiness: OnceLock::new(),
            tenants: OnceLock::new(),
        }
    }

    /// Sends a request to a session of this node, from its own front or `forwarded` by another
    /// node. No round trip.
    pub(crate) fn enter(
        &self,
        tenant: &str,
        principal: &Principal,
        session: &SessionId,
        mut request: SessionRequest,
        tokens: Option<&UpstreamTokens>,
        forwarded: bool,
    ) -> Entry {
        let handle = match self.registry.find(tenant, principal, session) {
            Lookup::Here(handle) => handle,
            Lookup::Foreign => return Entry::Refused(Refusal::UnknownSession),
            Lookup::Absent => return Entry::Absent,
        };
        if let Some(tokens) = tokens {
            request.set_tokens(tokens);
            handle.set_tokens(tokens);
        }
        match handle.send_request(self.context.bounds, |sink| request.event(sink, forwarded)) {
            Ok(queue) => Entry::Entered(LocalReply::new(queue, handle)),
            Err(refusal) => {
                if refusal == Refusal::Busy {
                    metrics::BUSY.inc();
                }
                Entry::Refused(refusal)
            }
        }
    }

    /// Whether another node could take over the sessions of this one.
    pub(crate) fn has_peers(&self) -> bool {
        !self.context.cluster.is_alone()
    }

    /// The peer that is to claim an ownerless session instead of this node. While this node drains
    /// it is the best candidate. While this node is stabilising, each `attempt` gets another peer,
    /// since a peer may be stabilising as well.
    pub(crate) fn claimant_peer(&self, attempt: usize) -> Option<Peer> {
        let cluster = &self.context.cluster;
        if self.registry.is_departing() { cluster.willing() } else { cluster.linked(attempt) }
    }

    /// The peer that is to claim a session for which this node has no slot: a linked one, the one
    /// with the fewest sessions first, and the next with each `attempt`.
    pub(crate) fn roomy_peer(&self, attempt: usize) -> Option<Peer> {
        self.context.cluster.roomy(attempt)
    }

    /// The peer that relays a request to an owner that this node cannot reach.
    pub(crate) fn relay(&self, owner: &Peer, attempt: usize) -> Option<Peer> {
        self.context.cluster.relay(owner, attempt)
    }

    /// The peer that creates new sessions instead of this node, while this node drains.
    pub(crate) fn creating_peer(&self) -> Option<Peer> {
        if self.registry.is_departing() { self.context.cluster.willing() } else { None }
    }
}
