//! The way into the node's sessions.

use std::collections::HashMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use backends::Backends;
use cluster::Cluster;
use conversation::Refusal;
use ownership::machine::{Claimable, LeaseSnapshot, Stabilisation};
use protocol::{Body, Message, Mirrored, Request, SessionId};
use store::{Incarnation, Store};
use tenants::{Principal, Tenant};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::arbiters::Arbiters;
use crate::registry::{Found, Registry};
use crate::remote::{self, RoutedRequest, Serving, SessionRequest};
use crate::reply_stream::Local;
use crate::seeking::Claims;
use crate::session_handle::SessionHandle;
use crate::session_start::{self, NewSession};
use crate::sink::Bounds;
use crate::tombstones::{self, Tombstones};
use crate::{Care, ReplyStream, Settings, clock, metrics};

/// How often a session that was too busy to hear that the node stops is told again.
const STOP_AGAIN: Duration = Duration::from_millis(20);
/// How long sessions may take to end when nothing is waited for any more.
const END_GRACE: Duration = Duration::from_secs(1);

/// Who comes to which session.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Whose endpoint was used.
    pub tenant: Arc<Tenant>,
    /// Who is asking; another principal's session is an unknown one.
    pub principal: Principal,
    /// Which session is meant.
    pub session: SessionId,
}

/// A session that was just made, and what its first connection is told.
pub struct Opened {
    /// The new session's id.
    pub session: SessionId,
    /// What the connection is told.
    pub replies: ReplyStream,
}

/// The node's sessions. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    node: Arc<Node>,
}

/// What every session of the node shares.
pub(crate) struct Node {
    pub(crate) settings: Settings,
    /// `settings.session`, shared by the sessions.
    pub(crate) limits: Arc<conversation::Limits>,
    /// Of every connection.
    pub(crate) bounds: Bounds,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) backends: Backends,
    pub(crate) registry: Arc<Registry>,
    /// Sessions that are being taken up.
    pub(crate) claims: Claims,
    /// Sessions that ended here a short while ago.
    pub(crate) tombstones: Arc<Tombstones>,
    /// Threads that they may be brought to.
    pub(crate) arbiters: Arbiters,
    /// How each tenant's server is looked after; the others' as by default.
    cares: OnceLock<HashMap<Arc<str>, Care>>,
    /// Of a node on its own.
    incarnation: Incarnation,
    /// Where the other nodes are, once this one has joined them.
    cluster: OnceLock<Cluster>,
    /// What session ids made here end with: a hint, never trusted.
    pub(crate) tag: Box<str>,
    /// Requests that are held until their session is found.
    pub(crate) held: AtomicUsize,
    /// Does this node give its sessions to others?
    pub(crate) departing: watch::Sender<bool>,
}

impl Handle {
    /// No session yet.
    pub fn new(settings: Settings, store: Arc<dyn Store>, backends: Backends) -> Self {
        metrics::show();
        // Neither is a secret; where the system has no randomness, the hasher's will do.
        let random = || getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(0));
        let incarnation = Incarnation(random());
        let tag = match settings.node_tag.as_str() {
            tag if is_tag(tag) => tag.to_owned(),
            tag => {
                if !tag.is_empty() {
                    tracing::warn!(tag, "`node_tag` is not 1 to 32 letters, digits and `_`");
                }
                format!("{:08x}", random() >> 32)
            }
        };
        let node = Node {
            limits: Arc::new(settings.limits()),
            bounds: settings.sink_bounds(),
            settings,
            store,
            backends,
            registry: Arc::new(Registry::new()),
            claims: Claims::default(),
            tombstones: Arc::default(),
            arbiters: Arbiters::default(),
            cares: OnceLock::new(),
            incarnation,
            cluster: OnceLock::new(),
            tag: tag.into(),
            held: AtomicUsize::new(0),
            departing: watch::Sender::new(false),
        };
        Self { node: Arc::new(node) }
    }

    /// What this node does with its peers' calls: what the cluster is joined with. It
    /// serves for as long as there is a handle.
    pub fn serving(&self) -> Arc<dyn cluster::Serve> {
        Arc::new(Serving(Arc::downgrade(&self.node)))
    }

    /// From now on sessions that live elsewhere are called there, new ones are known by the
    /// cluster's incarnation, and this node acts only while its lease lasts. To be called
    /// before the first session is made. A second cluster is not joined.
    pub fn join(&self, cluster: Cluster) {
        let changes = cluster.changes();
        if self.node.cluster.set(cluster).is_err() {
            tracing::error!("the node has joined a cluster already");
            return;
        }
        let (node, tombstones) = (Arc::downgrade(&self.node), Arc::clone(&self.node.tombstones));
        tokio::spawn(tombstones::keep_written(node.clone(), tombstones, changes.clone()));
        tokio::spawn(tell_of_changes(node, changes));
    }

    /// How these tenants' servers are looked after. To be called before the first session
    /// is made, once.
    pub fn look_after(&self, cares: impl IntoIterator<Item = (Arc<str>, Care)>) {
        if self.node.cares.set(cares.into_iter().collect()).is_err() {
            tracing::error!("how servers are looked after was said already");
        }
    }

    /// From now on sessions that are taken up may be brought to the calling thread, and what
    /// it has to say to other nodes is told once a turn. To be called on each thread whose
    /// connections are served, within its arbiter.
    pub fn register(&self) {
        self.node.arbiters.register();
        cluster::batch_wakes();
    }

    /// Makes a session of Streamable HTTP; `request` is its `initialize`. The session
    /// lives on the calling thread's arbiter; a node that leaves has another make it.
    pub async fn initialize(
        &self,
        tenant: &Arc<Tenant>,
        principal: &Principal,
        request: Request,
        mirrored: Option<Box<Mirrored>>,
    ) -> Result<Opened, Refusal> {
        self.node.until_it_may_open().await?;
        if self.node.is_departing()
            && let Some(peer) = self.node.willing_peer()
        {
            return remote::open(&self.node, &peer, tenant, principal, request, mirrored).await;
        }
        let body = Body::One(Message::Request(request));
        let post = NewSession::Posted { body, mirrored };
        session_start::create_session(&self.node, tenant, principal, post)
    }

    /// Makes a session whose every message goes to one connection (HTTP+SSE, stdio):
    /// the returned one, open from the start. It ends with that connection. Whatever node
    /// its client comes to next finds the session recorded. A node that leaves has another make it.
    pub async fn connect(
        &self,
        tenant: &Arc<Tenant>,
        principal: &Principal,
    ) -> Result<Opened, Refusal> {
        self.node.until_it_may_open().await?;
        if self.node.is_departing()
            && let Some(peer) = self.node.willing_peer()
        {
            return remote::connect(&self.node, &peer, tenant, principal).await;
        }
        let (recorded, is_recorded) = oneshot::channel();
        let opened = session_start::create_session(
            &self.node,
            tenant,
            principal,
            NewSession::Connected { recorded },
        )?;
        is_recorded.await.map_err(|_| Refusal::Unavailable)?;
        Ok(opened)
    }

    /// Brings what a client posted.
    pub async fn post(
        &self,
        caller: &Caller,
        body: Body,
        mirrored: Option<Box<Mirrored>>,
    ) -> Result<ReplyStream, Refusal> {
        self.enter(caller, SessionRequest::Post { body, mirrored, again: false })
    }

    /// Opens a GET stream, after an event where `after` (`Last-Event-ID`) names one.
    pub async fn listen(
        &self,
        caller: &Caller,
        after: Option<String>,
    ) -> Result<ReplyStream, Refusal> {
        self.enter(caller, SessionRequest::Listen { after })
    }

    /// Ends a session.
    pub async fn delete(&self, caller: &Caller) -> Result<ReplyStream, Refusal> {
        self.enter(caller, SessionRequest::Delete)
    }

    /// How many sessions live here now, those included that are about to go.
    pub fn sessions(&self) -> usize {
        self.node.registry.sessions()
    }

    /// Refuses new sessions and ends every session in order: at once where no request is
    /// in flight, else with its last one, and after `grace` whatever is in flight.
    /// Returns when all are gone, at most moments after `grace` is over.
    pub async fn stop(&self, grace: Duration) {
        self.node.registry.close();
        if timeout(grace, self.all_gone(SessionHandle::drain)).await.is_err()
            && timeout(END_GRACE, self.all_gone(SessionHandle::stop)).await.is_err()
        {
            let sessions = self.sessions();
            tracing::warn!(sessions, "sessions were still there when the node stopped");
        }
    }

    /// Gives up the sessions that are here, so that any other node can take them up: each
    /// once none of its requests is in flight, and after `grace` with an error as the last
    /// word on what is. Sessions that cannot go on elsewhere end as by [`Handle::stop`]; on
    /// a node on its own all do. Returns when none is left, at most moments after `grace` is
    /// over. Connections are served on, by other nodes' sessions; a session that is opened
    /// here meanwhile is given up like the others, until [`Handle::close`].
    pub async fn drain(&self, grace: Duration) {
        let Some(cluster) = self.node.cluster() else { return self.stop(grace).await };
        self.node.departing.send_replace(true);
        cluster.set_draining(true);
        let sessions = self.sessions();
        tracing::info!(sessions, "draining");
        if timeout(grace, self.all_gone(SessionHandle::hand_over)).await.is_ok() {
            return;
        }
        metrics::HANDOVERS_FORCED.inc_by(self.sessions() as u64);
        if timeout(END_GRACE, self.all_gone(SessionHandle::hand_over_at_once)).await.is_err()
            && timeout(END_GRACE, self.all_gone(SessionHandle::stop)).await.is_err()
        {
            let sessions = self.sessions();
            tracing::warn!(sessions, "sessions could not be given up; they are taken from us");
        }
    }

    /// Does this node give its sessions to others, or end them?
    pub fn is_draining(&self) -> bool {
        self.node.is_departing()
    }

    /// Refuses new sessions from now on.
    pub fn close(&self) {
        self.node.registry.close();
    }

    async fn all_gone(&self, tell: impl Fn(&SessionHandle)) {
        let registry = &self.node.registry;
        loop {
            let empty = registry.empty();
            tokio::pin!(empty);
            empty.as_mut().enable();
            if registry.sessions() == 0 {
                return;
            }
            registry.for_each(&tell);
            // A session with a full mailbox, or created meanwhile, gets the message in the next
            // round.
            let _ = timeout(STOP_AGAIN, empty).await;
        }
    }

    /// This never waits, so a caller that goes away cannot take a request half the way.
    fn enter(&self, caller: &Caller, request: SessionRequest) -> Result<ReplyStream, Refusal> {
        let node = &self.node;
        if node.sessions_move() {
            return Ok(ReplyStream::new(RoutedRequest::begin(node, caller, request), node, false));
        }
        // What can be told of a crowd only by a status waits for its turn instead.
        let again = (!request.asks()).then(|| request.clone());
        let (tenant, principal, session) =
            (&caller.tenant.name, &caller.principal, &caller.session);
        match node.enter(tenant, principal, session, request, false) {
            Entry::Entered(local) => Ok(ReplyStream::new(local, node, false)),
            Entry::Refused(Refusal::Busy) if let Some(request) = again => {
                Ok(ReplyStream::new(RoutedRequest::begin(node, caller, request), node, false))
            }
            Entry::Refused(refusal) => Err(refusal),
            Entry::Absent => Err(Refusal::UnknownSession),
        }
    }
}

/// What comes of a request to a session of this node.
pub(crate) enum Entry {
    /// It is on its way; this is what its connection is told.
    Entered(Local),
    /// It was not taken.
    Refused(Refusal),
    /// The session is not on this node, and nothing was done.
    Absent,
}

impl Node {
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
            Found::Here(handle) => handle,
            Found::Foreign => return Entry::Refused(Refusal::UnknownSession),
            Found::Absent => return Entry::Absent,
        };
        match handle.enter(self.bounds, |sink| request.event(sink, forwarded)) {
            Ok(local) => Entry::Entered(local),
            Err(refusal) => {
                if refusal == Refusal::Busy {
                    metrics::BUSY.inc();
                }
                Entry::Refused(refusal)
            }
        }
    }

    /// The node's place among others, if it has one.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.get()
    }

    /// The generation of this node's lease, where it may act for its sessions now. One on its own
    /// always may. No round trip.
    pub(crate) fn valid_lease_generation(&self) -> Option<u64> {
        self.cluster.get().map_or(Some(0), Cluster::valid_lease_generation)
    }

    /// The generation of this node's lease, whether or not it may act.
    pub(crate) fn lease_generation(&self) -> u64 {
        self.cluster.get().map_or(0, Cluster::lease_generation)
    }

    /// Rises with each failover of the store that this node sees. Takes no lock.
    pub(crate) fn newest_failover_generation(&self) -> u64 {
        self.cluster.get().map_or(0, Cluster::newest_failover_generation)
    }

    /// What the node knows now that matters to its ownership of a session, by the clock of
    /// sessions.
    pub(crate) fn lease_snapshot(&self, session: &SessionId) -> LeaseSnapshot {
        let now = clock::now().0;
        match self.cluster.get() {
            Some(cluster) => LeaseSnapshot { now, ..cluster.lease_snapshot(session) },
            None => {
                let stabilisation = Stabilisation::Done;
                LeaseSnapshot {
                    now,
                    lease_generation: Some(0),
                    failover_generation: 0,
                    stabilisation,
                    claimable: Claimable::default(),
                    primary: None,
                }
            }
        }
    }

    /// How a tenant's server is looked after.
    pub(crate) fn care(&self, tenant: &str) -> Care {
        self.cares.get().and_then(|cares| cares.get(tenant)).copied().unwrap_or_default()
    }

    /// Does this node give its sessions to others, or end them?
    pub(crate) fn is_departing(&self) -> bool {
        *self.departing.borrow() || self.registry.is_closed()
    }

    /// Can a session leave this node and go on, elsewhere or later?
    fn sessions_move(&self) -> bool {
        self.cluster.get().is_some() || self.settings.session.sleep_after_secs > 0
    }

    /// Is this node in a cluster, so that another node could take its sessions over?
    pub(crate) fn can_leave(&self) -> bool {
        self.cluster.get().is_some()
    }

    /// Returns when this node gives its sessions to others.
    pub(crate) fn leaving(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut departing = self.departing.subscribe();
        Box::pin(async move {
            // The node outlives its connections; should it not, they end anyway.
            let _ = departing.wait_for(|departing| *departing).await;
        })
    }

    /// A node that takes up what has no owner, where this one does not: the best where it
    /// leaves, where it has yet to settle another with each turn, for that may have to as well.
    pub(crate) fn taker(&self, turn: usize) -> Option<cluster::Peer> {
        if self.is_departing() { self.willing_peer() } else { self.cluster.get()?.linked(turn) }
    }

    /// A node that a link is up to and that takes sessions, for one that this node has no room
    /// for: with each turn the one with the next more sessions.
    pub(crate) fn roomy_peer(&self, turn: usize) -> Option<cluster::Peer> {
        self.cluster.get()?.roomy(turn)
    }

    /// Through whom an owner is asked that cannot be reached from here.
    pub(crate) fn relay(&self, owner: &cluster::Peer, turn: usize) -> Option<cluster::Peer> {
        self.cluster.get()?.relay(owner, turn)
    }

    /// A node that would take a session of this one's.
    pub(crate) fn willing_peer(&self) -> Option<cluster::Peer> {
        self.cluster.get()?.willing()
    }

    /// This life of the node, as its sessions' records name it.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.cluster.get().map_or(self.incarnation, Cluster::incarnation)
    }
}

/// Lets every session look around each time the lease or the store has changed.
async fn tell_of_changes(node: Weak<Node>, mut changes: watch::Receiver<u64>) {
    while changes.changed().await.is_ok() {
        let Some(node) = node.upgrade() else { return };
        node.registry.for_each(SessionHandle::wake);
    }
}

/// Can session ids end with it?
fn is_tag(text: &str) -> bool {
    let fits = (1..=32).contains(&text.len());
    fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
