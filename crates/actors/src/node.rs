//! The sessions of this node and the ways to them: the parts that requests share.

use std::sync::Arc;

use cluster::Peer;
use conversation::Refusal;
use ownership::SessionRequest;
use protocol::SessionId;
use tenants::Principal;

use crate::arbiters::Arbiters;
use crate::held::HeldRequests;
use crate::metrics;
use crate::node_context::NodeContext;
use crate::registry::{Lookup, Registry};
use crate::session::LocalReply;
use crate::takeover::OngoingClaims;

/// The sessions of this node and the ways to them.
pub(crate) struct Node {
    pub(crate) context: Arc<NodeContext>,
    pub(crate) registry: Arc<Registry>,
    /// Threads that sessions may be placed on.
    pub(crate) arbiters: Arbiters,
    /// Sessions that this node is claiming.
    pub(crate) claims: OngoingClaims,
    /// Requests that wait until something can be done for them.
    pub(crate) held: HeldRequests,
}

/// The result of bringing a request to a session of this node.
pub(crate) enum Entry {
    /// The session has the request; its replies arrive here.
    Entered(LocalReply),
    /// The request was not taken.
    Refused(Refusal),
    /// The session is not on this node, and nothing was done.
    Absent,
}

impl Node {
    /// A node without sessions.
    pub(crate) fn new(context: NodeContext) -> Self {
        let held = HeldRequests::new(context.settings.held_max);
        Self {
            registry: Arc::new(Registry::new(context.cluster.load())),
            context: Arc::new(context),
            arbiters: Arbiters::default(),
            claims: OngoingClaims::default(),
            held,
        }
    }

    /// Brings a request to a session of this node, from its own front or `forwarded` by
    /// another node. No round trip.
    pub(crate) fn enter(
        &self,
        tenant: &str,
        principal: &Principal,
        session: &SessionId,
        request: SessionRequest,
        forwarded: bool,
    ) -> Entry {
        let handle = match self.registry.find(tenant, principal, session) {
            Lookup::Here(handle) => handle,
            Lookup::Foreign => return Entry::Refused(Refusal::UnknownSession),
            Lookup::Absent => return Entry::Absent,
        };
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

    /// Could another node take over the sessions of this one?
    pub(crate) fn has_peers(&self) -> bool {
        !self.context.cluster.is_alone()
    }

    /// The peer that is to claim an ownerless session where this node must not: the best
    /// candidate while this node drains. A node that is stabilising takes another peer with each
    /// `attempt`, since that peer may be stabilising as well.
    pub(crate) fn claimant_peer(&self, attempt: usize) -> Option<Peer> {
        let cluster = &self.context.cluster;
        if self.registry.is_departing() { cluster.willing() } else { cluster.linked(attempt) }
    }

    /// The peer that is to claim a session for which this node has no room: one that a link is up
    /// to, the one with the fewest sessions first, and the next with each `attempt`.
    pub(crate) fn roomy_peer(&self, attempt: usize) -> Option<Peer> {
        self.context.cluster.roomy(attempt)
    }

    /// The peer that passes a request on to an owner that cannot be reached from here.
    pub(crate) fn relay(&self, owner: &Peer, attempt: usize) -> Option<Peer> {
        self.context.cluster.relay(owner, attempt)
    }

    /// The peer that creates new sessions instead of this node, while this node drains.
    pub(crate) fn creating_peer(&self) -> Option<Peer> {
        if self.registry.is_departing() { self.context.cluster.willing() } else { None }
    }
}
