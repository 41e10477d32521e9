//! The public handle of a node's sessions.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use backends::http::{Linking, User, UserKey, Vault};
use backends::{Backends, Exchanging};
use budget::Budget;
use cluster::{Cluster, Membership, Revocations};
use conversation::Refusal;
use ownership::SessionRequest;
use protocol::{Body, Message, Mirrored, Request};
use store::Store;
use telemetry::{TenantLabels, Traces};
use tenants::{Principal, Tenant};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::held::until_sessions_can_be_created;
use crate::limits::{NodeLimits, PendingSession};
use crate::link_seal::LinkSeal;
use crate::node::Node;
use crate::node_context::{ContextParts, NodeContext};
use crate::overview::Overview;
use crate::principal_digest::PrincipalDigests;
use crate::relief::{relieve_tenants, show_tenants};
use crate::reply_stream::{Opened, ReplyStream};
use crate::revocations::{self, RevocationOrder, RevocationRefused, RevocationResult};
use crate::routing::{Owner, PeerService, create_at_peer, share_limits};
use crate::session::{NewSession, Opener, StopRequest, create_session};
use crate::tombstones::keep_tombstones_written;
use crate::vault::SealedNotes;
use crate::{Caller, Care, SessionBytes, Settings, metrics, session_durations};

/// The interval at which a stop request is sent again to a session whose mailbox was full.
const STOP_AGAIN: Duration = Duration::from_millis(20);
/// How long sessions may take to end after the grace period.
const END_GRACE: Duration = Duration::from_secs(1);

/// The parts from which a node's sessions are assembled.
pub struct NodeParts {
    /// The bounds of the sessions.
    pub settings: Settings,
    /// The store of records and logs.
    pub store: Arc<dyn Store>,
    /// The tenants' servers.
    pub backends: Backends,
    /// The settings for each tenant's server; other tenants have the default.
    pub cares: HashMap<Arc<str>, Care>,
    /// The node's membership in a cluster, or a cluster of one, which no session leaves.
    pub membership: Membership,
    /// The budget of the bytes that sessions keep.
    pub session_bytes: SessionBytes,
    /// The server processes of the tenants, which operators see; `None` if they are not counted.
    pub children: Option<Budget>,
    /// Whether the store keeps its records in the memory of this process, for this node only. A
    /// session that left memory would release little, and would no longer be counted: none does.
    pub store_is_in_process: bool,
    /// The most sessions of each tenant. Half of `sessions_max` is divided among these tenants.
    pub tenant_sessions_max: HashMap<Arc<str>, usize>,
    /// The tenants with metrics of their own.
    pub tenant_labels: TenantLabels,
    /// The secrets with which records keep digests of principals: the present one, then former ones. All
    /// nodes that share a store need the same. Without any, digests are not keyed.
    pub digest_secrets: Vec<Box<[u8]>>,
    /// Begins the spans of requests that are traced.
    pub traces: Traces,
}

impl NodeParts {
    /// The parts of a cluster of one, with the default settings for each tenant's server. Call it
    /// within the runtime of the node.
    pub fn alone(settings: Settings, store: Arc<dyn Store>, backends: Backends) -> Self {
        let membership = Cluster::alone(Arc::clone(&store));
        let session_bytes = SessionBytes::unlimited();
        Self {
            settings,
            store,
            backends,
            cares: HashMap::new(),
            membership,
            session_bytes,
            children: None,
            store_is_in_process: false,
            tenant_sessions_max: HashMap::new(),
            tenant_labels: TenantLabels::default(),
            digest_secrets: Vec::new(),
            traces: Traces::default(),
        }
    }
}

/// The node's sessions. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    node: Arc<Node>,
    /// See [`Handle::of_client`].
    client: Option<IpAddr>,
}

impl Handle {
    /// Creates a node without sessions. It serves its peers as long as a handle exists. Call it
    /// within the runtime of the node.
    pub fn new(parts: NodeParts) -> Self {
        metrics::show();
        session_durations::show();
        let NodeParts {
            settings,
            store,
            backends,
            cares,
            membership,
            session_bytes,
            children,
            store_is_in_process,
            tenant_sessions_max,
            tenant_labels,
            mut digest_secrets,
            traces,
        } = parts;
        let mut random = [0; 32];
        if store_is_in_process && getrandom::fill(&mut random).is_ok() {
            // No other process reads the records.
            digest_secrets = vec![random.into()];
        }
        let settings = if store_is_in_process { settings.without_sleep() } else { settings };
        let cluster = membership.cluster().clone();
        let bytes = session_bytes.clone();
        let digests = PrincipalDigests::new(&digest_secrets);
        let link_seal = LinkSeal::new(&digest_secrets);
        let vault = Arc::new(SealedNotes::new(Arc::clone(&store), &digest_secrets));
        let context = NodeContext::new(ContextParts {
            settings,
            store,
            backends,
            cares,
            cluster,
            session_bytes,
            children,
            digests,
            link_seal,
            vault,
            traces,
        });
        let node = Arc::new(Node::new(context, tenant_sessions_max));
        tokio::spawn(show_tenants(bytes.clone(), tenant_labels, Arc::downgrade(&node)));
        tokio::spawn(share_limits(Arc::downgrade(&node)));
        tokio::spawn(relieve_tenants(bytes, Arc::downgrade(&node), !store_is_in_process));
        tokio::spawn(revocations::end_revoked_sessions(Arc::downgrade(&node)));
        if !store_is_in_process {
            tokio::spawn(revocations::keep_reading(Arc::downgrade(&node)));
        }
        if node.has_peers() {
            tokio::spawn(keep_tombstones_written(Arc::downgrade(&node.context)));
            tokio::spawn(wake_sessions_on_changes(Arc::downgrade(&node)));
        }
        membership.serve(Arc::new(PeerService::new(&node)));
        Self { node, client: None }
    }

    /// The handle with which a client at this address creates sessions. Of the sessions whose
    /// clients have not completed the handshake, those of the busiest address end first. All
    /// addresses that count as one client must be given as the same one; clients whose address is
    /// not known count as one client.
    pub fn of_client(&self, client: Option<IpAddr>) -> Self {
        Self { node: Arc::clone(&self.node), client }
    }

    /// The node's membership in its cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.node.context.cluster
    }

    /// Registers the calling thread: claimed sessions may be placed on it, and its frames to other
    /// nodes are written once per event-loop tick. Call it on each thread that serves connections,
    /// within its arbiter.
    pub fn register(&self) {
        self.node.arbiters.register();
        cluster::batch_wakes();
    }

    /// Creates a session of Streamable HTTP; `request` is its `initialize`. The session runs on the
    /// calling thread's arbiter. A draining node lets another node create it.
    pub async fn initialize(
        &self,
        tenant: &Arc<Tenant>,
        principal: &Principal,
        request: Request,
        mirrored: Option<Box<Mirrored>>,
    ) -> Result<Opened, Refusal> {
        let unconfirmed_max = self.node.context.settings.unconfirmed_max;
        self.node.registry.turn(&tenant.name, unconfirmed_max).await?;
        until_sessions_can_be_created(&self.node).await?;
        let body = Body::One(Message::Request(request.clone()));
        let (session, owner) = match self.node.creating_peer() {
            Some(peer) => {
                let initialize = Some((request, mirrored.clone()));
                let (session, calling) =
                    create_at_peer(&peer, tenant, principal, initialize).await?;
                (session, Owner::There(calling, peer.incarnation()))
            }
            None => {
                let (body, mirrored) = (body.clone(), mirrored.clone());
                let new_session = NewSession::Posted { body, mirrored };
                let opener = Opener { tenant, principal, client: self.client };
                let (context, registry) = (&self.node.context, &self.node.registry);
                let (session, reply) = create_session(context, registry, opener, new_session)?;
                (session, Owner::Here(reply))
            }
        };
        let request = SessionRequest::Post { body, mirrored, again: false };
        let (tenant, principal) = (Arc::clone(tenant), principal.clone());
        let caller = Caller { tenant, principal, session, tokens: request.tokens().cloned() };
        Ok(Opened::of_initialize(&self.node, caller, request, owner))
    }

    /// Creates a session whose messages all go to one connection (HTTP+SSE, stdio). The returned
    /// reply stream is that connection, and is open from the start. The session ends with it. The
    /// session is recorded, so that a client may post to another node. A draining node lets another
    /// node create it.
    pub async fn connect(
        &self,
        tenant: &Arc<Tenant>,
        principal: &Principal,
    ) -> Result<Opened, Refusal> {
        self.connect_counted(tenant, principal, None).await
    }

    /// [`connect`](Self::connect) for a session that a limit counts. `pending` is dropped once the registry
    /// has the session, which then waits for the store: it would otherwise count twice in that time.
    pub async fn connect_counted(
        &self,
        tenant: &Arc<Tenant>,
        principal: &Principal,
        pending: Option<PendingSession>,
    ) -> Result<Opened, Refusal> {
        let unconfirmed_max = self.node.context.settings.unconfirmed_max;
        self.node.registry.turn(&tenant.name, unconfirmed_max).await?;
        until_sessions_can_be_created(&self.node).await?;
        let (session, owner) = match self.node.creating_peer() {
            Some(peer) => {
                let (session, calling) = create_at_peer(&peer, tenant, principal, None).await?;
                (session, Owner::There(calling, peer.incarnation()))
            }
            None => {
                let (recorded, is_recorded) = oneshot::channel();
                let new_session = NewSession::Connected { recorded };
                let opener = Opener { tenant, principal, client: self.client };
                let (context, registry) = (&self.node.context, &self.node.registry);
                let (session, reply) = create_session(context, registry, opener, new_session)?;
                drop(pending);
                is_recorded.await.map_err(|_| Refusal::Unavailable)?;
                (session, Owner::Here(reply))
            }
        };
        let (tenant, principal) = (Arc::clone(tenant), principal.clone());
        let caller = Caller { tenant, principal, session, tokens: None };
        Ok(Opened::of_duplex(&self.node, caller, owner))
    }

    /// The tokens that the requests of a client of this tenant need at the tenant's upstream servers. `token` is
    /// that with which the client authenticated; `links_at`: where its user links accounts. `None`: the
    /// tenant has no server that gets a token of each user.
    pub fn exchange(
        &self,
        tenant: &str,
        principal: &Principal,
        token: Option<&str>,
        links_at: Option<Arc<str>>,
    ) -> Option<Exchanging> {
        let key = self.user(tenant, principal);
        let (token, vault) = (token.map(Arc::from), self.vault());
        let backend = self.node.context.backends.of(tenant)?;
        backend.exchange(&User { token, key, links_at, vault })
    }

    /// Identifies a user of a tenant at all nodes, and what of this user's links still counts.
    pub fn user(&self, tenant: &str, principal: &Principal) -> UserKey {
        let revoked_ms = self.node.context.revoked_ms(tenant, principal);
        UserKey { name: principal.name().to_owned(), revoked_ms }
    }

    /// How users of a tenant link accounts at its servers.
    pub fn linkings(&self, tenant: &str) -> Vec<Linking> {
        self.node.context.backends.of(tenant).map_or_else(Vec::new, |backend| backend.linkings())
    }

    /// Where the tokens of users are kept.
    pub fn vault(&self) -> Arc<dyn Vault> {
        Arc::clone(&self.node.context.vault)
    }

    /// Sends the body of a POST to its session. Never waits, so a request is not lost if its caller
    /// is dropped.
    pub fn post(
        &self,
        caller: &Caller,
        body: Body,
        mirrored: Option<Box<Mirrored>>,
    ) -> ReplyStream {
        self.enter(caller, SessionRequest::Post { body, mirrored, again: false })
    }

    /// Opens a GET stream; `after` is the `Last-Event-ID`, if the request has one. Never waits.
    pub fn listen(&self, caller: &Caller, after: Option<String>) -> ReplyStream {
        self.enter(caller, SessionRequest::Listen { after })
    }

    /// Ends a session. Never waits.
    pub fn delete(&self, caller: &Caller) -> ReplyStream {
        self.enter(caller, SessionRequest::Delete)
    }

    fn enter(&self, caller: &Caller, request: SessionRequest) -> ReplyStream {
        ReplyStream::of_request(&self.node, caller, request)
    }

    /// What operators see of the cluster, and what they do with its sessions.
    pub fn overview(&self) -> Overview {
        Overview::new(&self.node)
    }

    /// The limits of the whole cluster at this node.
    pub fn limits(&self) -> &NodeLimits {
        &self.node.limits
    }

    /// The node's name for operators.
    pub fn node_name(&self) -> Arc<str> {
        self.cluster().name()
    }

    /// The number of sessions on this node, including those that are leaving.
    pub fn sessions(&self) -> usize {
        self.node.registry.sessions()
    }

    /// Refuses new sessions and ends every session in order: at once if no request is in flight,
    /// else after the last one, and after `grace` in any case. Returns when all have ended, at most
    /// a moment after `grace`.
    pub async fn stop(&self, grace: Duration) {
        self.close();
        self.end_all(grace).await;
    }

    async fn end_all(&self, grace: Duration) {
        if timeout(grace, self.all_gone(StopRequest::Drain)).await.is_err()
            && timeout(END_GRACE, self.all_gone(StopRequest::Stop)).await.is_err()
        {
            let sessions = self.sessions();
            tracing::warn!(sessions, "sessions had not ended when the node stopped");
        }
    }

    /// Replaces the settings for all tenants' servers. A session keeps those that it began with.
    pub fn replace_cares(&self, cares: HashMap<Arc<str>, Care>) {
        self.node.context.replace_cares(cares);
    }

    /// Divides half of `sessions_max` anew among these tenants, each with the most sessions that it may
    /// have. See [`Budget::divide`](budget::Budget::divide).
    pub fn divide_sessions(&self, tenant_sessions_max: HashMap<Arc<str>, usize>) {
        self.node.registry.divide(tenant_sessions_max.into_iter());
    }

    /// Forgets a tenant that was removed from the settings, after its sessions have ended.
    pub fn forget_tenant(&self, tenant: &str) {
        self.node.registry.forget_tenant(tenant);
    }

    /// Ends the sessions of a tenant on this node: each one once none of its requests is in flight, and
    /// all of them after `grace`. Returns when none is left, at most a moment after `grace`. Also ends the
    /// sessions that are created meanwhile, until the future is dropped.
    pub async fn end_tenant(&self, tenant: &str, grace: Duration) {
        if timeout(grace, self.tenant_gone(tenant, StopRequest::Drain)).await.is_err()
            && timeout(END_GRACE, self.tenant_gone(tenant, StopRequest::Stop)).await.is_err()
        {
            tracing::warn!(tenant, "sessions of a removed tenant had not ended in time");
        }
    }

    /// Returns when the tenant has no session on this node. Every session gets the request.
    async fn tenant_gone(&self, tenant: &str, request: StopRequest) {
        loop {
            let left = Cell::new(false);
            self.node.registry.for_each(|session| {
                if **session.tenant() == *tenant {
                    left.set(true);
                    let _is_sent = session.send_stop_request(request);
                }
            });
            if !left.get() {
                return;
            }
            tokio::time::sleep(STOP_AGAIN).await;
        }
    }

    /// The clients of tenants that are revoked.
    pub fn revocations(&self) -> &Revocations {
        self.cluster().revocations()
    }

    /// Revokes clients of a tenant, or takes that back: at this node and its peers at once, and in the store.
    pub async fn revoke(
        &self,
        tenant: &Arc<str>,
        principals: &[Principal],
        order: RevocationOrder,
    ) -> Result<RevocationResult, RevocationRefused> {
        revocations::revoke(&self.node, tenant, principals, order).await
    }

    /// Releases the sessions of this node, so that other nodes can take them over: each one once
    /// none of its requests is in flight; after `grace`, requests in flight end with an error.
    /// Sessions that cannot move end as by [`Handle::stop`]; in a cluster of one all do. Returns
    /// when no session is left, at most a moment after `grace`. Connections are still served, by
    /// sessions on other nodes. A session that is created here meanwhile is released as well, until
    /// [`Handle::close`]. [`Handle::cancel_drain`] takes it back, after this future was dropped.
    pub async fn drain(&self, grace: Duration) {
        self.begin_drain();
        if !self.node.has_peers() {
            return self.end_all(grace).await;
        }
        let sessions = self.sessions();
        tracing::info!(sessions, "draining started");
        if timeout(grace, self.all_gone(StopRequest::HandOver)).await.is_ok() {
            return;
        }
        metrics::HANDOVERS_FORCED.inc_by(self.sessions() as u64);
        // A session that the store has not acknowledged by then is not ended: another node claims it.
        if timeout(END_GRACE, self.all_gone(StopRequest::HandOverNow)).await.is_err() {
            let sessions = self.sessions();
            tracing::warn!(
                sessions,
                "releasing sessions failed; other nodes claim them when this one has stopped"
            );
        }
    }

    /// The first step of [`Handle::drain`]: from now on a node alone refuses new sessions, and others
    /// let their peers create them.
    pub fn begin_drain(&self) {
        if self.node.has_peers() {
            self.node.registry.drain();
            self.cluster().set_draining(true);
        } else {
            self.node.registry.refuse();
        }
    }

    /// Takes [`Handle::drain`] back: the node accepts sessions again, and the sessions that are
    /// still here stay. Sessions that have left do not return by themselves: the next request of
    /// each brings it to the node that receives the request. A session that is leaving already, or
    /// whose mailbox is full, leaves nevertheless. Changes nothing at a node that does not drain,
    /// or that was closed or stopped.
    pub fn cancel_drain(&self) {
        if !self.is_draining() || !self.node.registry.reopen() {
            return;
        }
        self.cluster().set_draining(false);
        self.node.registry.for_each(|session| session.cancel_stop_request());
        let sessions = self.sessions();
        tracing::info!(sessions, "draining taken back");
    }

    /// Whether this node hands over or ends its sessions.
    pub fn is_draining(&self) -> bool {
        self.node.registry.is_departing()
    }

    /// Refuses new sessions from now on.
    pub fn close(&self) {
        self.node.registry.close();
    }

    /// Sends a stop request to each session, and returns when no session is left.
    async fn all_gone(&self, request: StopRequest) {
        let registry = &self.node.registry;
        loop {
            let empty = registry.empty();
            tokio::pin!(empty);
            empty.as_mut().enable();
            if registry.sessions() == 0 {
                return;
            }
            registry.for_each(|session| {
                let _is_sent = session.send_stop_request(request);
            });
            // A session with a full mailbox, or one created meanwhile, gets the request in the next
            // round.
            let _ = timeout(STOP_AGAIN, empty).await;
        }
    }
}

/// Wakes every session each time the lease or the store has changed.
async fn wake_sessions_on_changes(node: Weak<Node>) {
    let Some(mut changes) = node.upgrade().map(|node| node.context.cluster.changes()) else {
        return;
    };
    while changes.changed().await.is_ok() {
        let Some(node) = node.upgrade() else { return };
        node.registry.for_each(|session| session.wake());
    }
}
