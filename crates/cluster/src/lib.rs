//! Which node owns a session, and how to reach that node.
//!
//! A [`Cluster`] keeps this node's lease, keeps a list of the other nodes, and carries calls to
//! them. The content of a call is opaque bytes here. A cluster claims a session when its caller
//! requests that, and decides nothing about the messages of the session.

mod claim;
mod clock;
mod dial;
mod failovers;
mod link;
mod linked;
mod listen;
mod location_cache;
mod locator;
mod meet;
mod members;
mod metrics;
mod node;
mod node_lease;
mod peer_watch;
mod peers;
mod settings;
#[cfg(test)]
mod tests;
mod upkeep;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use peering::{LocalNode, TlsError, Trust};
use protocol::SessionId;
use store::{Claimed, Incarnation, Lease, Record, Store};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use ownership::location::Cause;
pub use peering::{CallError, Replies, Tls, Versions, install_flush_queue as batch_wakes};
pub use settings::Settings;

use self::clock::Clock;
use self::failovers::Failovers;
use self::link::Link;
use self::listen::listen;
use self::location_cache::LocationCache;
use self::members::Members;
use self::node::Node;
use self::node_lease::NodeLease;
use ownership::location::Undecided;
use ownership::machine::LeaseSnapshot;

/// How long peers are served on after all of them should know that this node leaves.
const LAST_CALLS: Duration = Duration::from_millis(100);

/// What this node does with a peer's call.
pub trait Serve: Send + Sync + 'static {
    /// Takes a call, on the runtime that the cluster was joined on. Never waits; what comes of
    /// it is told by the replies. `None` means "not started": nothing was done, and the caller
    /// may send it elsewhere.
    fn serve(&self, call: Bytes) -> Option<Box<dyn Replies>>;
}

/// How many sessions this node keeps. The others learn it with each renewal of the lease.
/// Clones share the number.
#[derive(Clone, Debug, Default)]
pub struct Load(Arc<AtomicU64>);

impl Load {
    /// The node keeps so many sessions now.
    pub fn set(&self, sessions: u64) {
        self.0.store(sessions, Ordering::Relaxed);
    }

    fn sessions(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Where a session is.
#[derive(Clone, Debug)]
pub enum SessionLocation {
    /// The record names this node (this process). One that lacks the session claims it
    /// from itself.
    Here(Box<Record>),
    /// The record names another node, which holds its lease.
    There(Peer),
    /// The record names a node that is gone, or released it. [`Cluster::claim`] it.
    Ownerless(Box<Record>, Cause),
    /// It has ended: this is its tombstone.
    Ended(Box<Record>),
    /// There is no such session.
    Unknown,
}

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store failed over a moment ago, and what it forgot is not put back yet.
    #[error("the store failed over; what it may have forgotten is still being put back")]
    Stabilisation,
    /// The store was out of reach a moment ago, so a lease that is gone may be that of a node that
    /// could not renew it either.
    #[error("the store was out of reach; other nodes may still be renewing their leases")]
    OutOfReach,
    /// Another node has claimed the session: locate it again.
    #[error("the session was claimed by another")]
    Taken,
    /// The store cannot be reached; the same may succeed later.
    #[error("the store is unavailable")]
    Store(#[source] store::Error),
    /// This node holds no lease now, so it cannot say who is gone. The same may succeed
    /// when the lease is renewed.
    #[error("this node holds no lease now; try again when it is renewed")]
    NoLease,
    /// The peer link cannot listen there.
    #[error("the peer link cannot listen on {address}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A setting is wrong; the text names it and the remedy.
    #[error("{0}")]
    Settings(String),
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        Self::Settings(error.to_string())
    }
}

impl From<Undecided> for Error {
    fn from(undecided: Undecided) -> Self {
        match undecided {
            Undecided::Stabilisation => Self::Stabilisation,
            Undecided::OutOfReach => Self::OutOfReach,
            Undecided::NoLease => Self::NoLease,
        }
    }
}

/// A node that holds its lease and does not answer the calls of peers yet. Peers that connect
/// meanwhile wait.
#[must_use = "peers wait until their calls are served"]
pub struct Membership {
    cluster: Cluster,
    /// Where peers connect; none where no peer does.
    sockets: Option<TcpListener>,
}

impl Membership {
    /// This node's place among the others.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Answers the calls of peers from now on.
    pub fn serve(self, serve: Arc<dyn Serve>) -> Cluster {
        if let Some(sockets) = self.sockets {
            let node = self.cluster.node.clone();
            self.cluster.node.runtime.spawn(listen(node, sockets, serve));
        }
        self.cluster
    }
}

/// This node's place among the others. Cheap to clone.
#[derive(Clone)]
pub struct Cluster {
    node: Arc<Node>,
    /// The lease is to be kept no more.
    leaving: CancellationToken,
    /// It was given up, or could not be.
    left: CancellationToken,
}

impl Cluster {
    /// Takes up a lease, listens for peers, and keeps doing both until [`Cluster::leave`],
    /// on the runtime that this is called on.
    ///
    /// `versions`: of the calls and replies that this node reads. A link to a node comes about only
    /// where both read one.
    pub async fn join(
        settings: Settings,
        store: Arc<dyn Store>,
        versions: Versions,
    ) -> Result<Membership, Error> {
        Self::join_by(clock::boottime(), settings, store, versions).await
    }

    /// A cluster of one: its lease is always valid, and no peer ever connects. No other node may
    /// use the store. Call it within the runtime that the node runs on.
    pub fn alone(store: Arc<dyn Store>) -> Membership {
        // It names this process and is no secret; where the system has no randomness, the
        // hasher's will do.
        let random = getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(0));
        let settings = Settings::default();
        let local = LocalNode {
            incarnation: random,
            address: "".into(),
            ping_ms: settings.ping_ms,
            pong_ms: settings.pong_ms,
            versions: Versions::UNANNOUNCED,
            secret: String::new(),
            trust: None,
        };
        let node = Node {
            incarnation: Incarnation(random),
            name: "".into(),
            store,
            load: Load::default(),
            is_alone: true,
            local,
            lease: NodeLease::permanent(clock::boottime(), settings.timing()),
            failovers: Failovers::never(),
            changes: watch::Sender::new(0),
            peers: peers::Peers::default(),
            members: Members::new(settings.limits()),
            location_cache: LocationCache::new(0),
            draining: false.into(),
            renew_now: tokio::sync::Notify::new(),
            look_now: tokio::sync::Notify::new(),
            closing: CancellationToken::new(),
            runtime: Handle::current(),
            settings,
        };
        // There is no lease in the store to give up.
        let left = CancellationToken::new();
        left.cancel();
        let cluster = Self { node: Arc::new(node), leaving: CancellationToken::new(), left };
        Membership { cluster, sockets: None }
    }

    /// Joins, and holds the lease by `clock`.
    async fn join_by(
        clock: Clock,
        settings: Settings,
        store: Arc<dyn Store>,
        versions: Versions,
    ) -> Result<Membership, Error> {
        settings.check()?;
        if settings.has_weak_secret() {
            tracing::warn!(
                "cluster.secret has fewer than 32 bytes: an attacker that records a handshake \
                 can guess it; use 32 random bytes, as from `openssl rand -hex 32`"
            );
        }
        let random = getrandom::u64()
            .map_err(|error| Error::Settings(format!("the system has no random bits: {error}")))?;
        let listener = bind(&settings.listen).await?;
        let address = match &listener {
            Some((_, bound)) => settings.told(*bound)?,
            None => String::new(),
        };
        let address: Arc<str> = address.into();
        let name = match settings.name.as_str() {
            "" => address.clone(),
            name => name.into(),
        };
        let local = LocalNode {
            incarnation: random,
            address: address.clone(),
            ping_ms: settings.ping_ms,
            pong_ms: settings.pong_ms,
            versions,
            secret: settings.secret.clone(),
            trust: settings.tls.as_ref().map(Trust::of).transpose()?,
        };
        let node = Arc::new(Node {
            incarnation: Incarnation(random),
            name,
            store,
            load: Load::default(),
            is_alone: false,
            local,
            lease: NodeLease::new(clock, settings.timing()),
            failovers: Failovers::new(settings.stabilisation()),
            changes: watch::Sender::new(0),
            peers: peers::Peers::default(),
            members: Members::new(settings.limits()),
            location_cache: LocationCache::new(settings.location_cache_max),
            draining: false.into(),
            renew_now: tokio::sync::Notify::new(),
            look_now: tokio::sync::Notify::new(),
            closing: CancellationToken::new(),
            runtime: Handle::current(),
            settings,
        });
        batch_wakes();
        // What the system gave this process to listen at, it has taken from no other.
        let is_given =
            listener.as_ref().is_none_or(|(_, bound)| *node.local.address == *bound.to_string());
        if !is_given {
            node.refuse_shared_address().await?;
        }
        node.come_in().await.map_err(Error::Store)?;

        let (leaving, left) = (CancellationToken::new(), CancellationToken::new());
        tokio::spawn(upkeep::keep_lease(node.clone(), leaving.clone(), left.clone().drop_guard()));
        tokio::spawn(upkeep::keep_looking(node.clone(), leaving.clone()));
        tokio::spawn(upkeep::mark_former_nodes(node.clone()));
        tracing::info!(incarnation = %node.incarnation, address = %node.local.address, "joined");
        let sockets = listener.map(|(sockets, _)| sockets);
        Ok(Membership { cluster: Self { node, leaving, left }, sockets })
    }

    /// Does no other node share this node's sessions? Then none can take one over.
    pub fn is_alone(&self) -> bool {
        self.node.is_alone
    }

    /// Where to note how many sessions this node keeps.
    pub fn load(&self) -> Load {
        self.node.load.clone()
    }

    /// This process.
    pub fn incarnation(&self) -> Incarnation {
        self.node.incarnation
    }

    /// Where peers reach this node; empty where none does.
    pub fn address(&self) -> &str {
        &self.node.local.address
    }

    /// May this node act as an owner now? No round trip.
    pub fn may_act(&self) -> bool {
        self.node.lease.generation_if_valid().is_some()
    }

    /// The generation of this node's lease, where it may act as an owner now. Rises whenever
    /// others may have seen the node gone: a session that was claimed in an earlier generation is
    /// claimed anew before anything is done for it.
    pub fn valid_lease_generation(&self) -> Option<u64> {
        self.node.lease.generation_if_valid()
    }

    /// The generation of this node's lease, whether or not it may act. See
    /// [`Cluster::valid_lease_generation`].
    pub fn lease_generation(&self) -> u64 {
        self.node.lease.generation()
    }

    /// Waits until this incarnation was marked dead. It never acts again: end the process.
    pub async fn marked_dead(&self) {
        self.node.lease.ended().await;
    }

    /// Where a session is. Answers are kept for a moment; `fresh` reads the record again.
    pub async fn locate(&self, session: &SessionId, fresh: bool) -> Result<SessionLocation, Error> {
        locator::locate(&self.node, session, fresh).await
    }

    /// Takes a session over that [`Cluster::locate`] found without an owner, or with this
    /// node as one that lacks it. One round trip, where nothing is in the way.
    pub async fn claim(
        &self,
        session: &SessionId,
        record: &Record,
        ttl: Duration,
    ) -> Result<Claimed, Error> {
        claim::claim(&self.node, session, record, ttl).await
    }

    /// What this node knows now that matters to its ownership of a session.
    pub fn lease_snapshot(&self, session: &SessionId) -> LeaseSnapshot {
        let now = self.node.lease.now();
        let generation = self.node.failovers.generation(session, now);
        LeaseSnapshot {
            now,
            lease_generation: self.node.lease.generation_if_valid(),
            failover_generation: generation.number,
            stabilisation: generation.stabilisation,
            claimable: generation.claimable,
            primary: generation.primary,
        }
    }

    /// Rises with each failover of the store that this node sees: then the failover generation of a
    /// [`Cluster::lease_snapshot`] may be another. Takes no lock.
    pub fn newest_failover_generation(&self) -> u64 {
        self.node.failovers.newest()
    }

    /// Is stabilisation done, which follows a failover of the store and this node's start?
    pub fn is_stable(&self) -> bool {
        self.node.failovers.is_stable(self.node.lease.now())
    }

    /// Told each time the lease generation or a primary of the store changed, or the permission to
    /// act was lost or came back: owners then have something to do for sessions in which nothing
    /// happens.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.node.changes.subscribe()
    }

    /// How many peers this node has found dead or without a lease.
    pub fn deaths(&self) -> u64 {
        self.node.members.forgotten()
    }

    /// Returns when this node has found more than so many peers gone: a request that waits
    /// for a session of one of them need not wait longer.
    pub fn another_death(&self, than: u64) -> impl Future<Output = ()> + Send + 'static {
        self.node.members.forgotten_more(than)
    }

    /// The leases that were live when this node last looked, its own among them.
    pub fn nodes(&self) -> Vec<Lease> {
        self.node.members.leases()
    }

    /// A node that takes sessions: one that a link is up to, if there is one, and the one
    /// with the fewest sessions. This one is not asked. None where it is alone, or all leave.
    pub fn willing(&self) -> Option<Peer> {
        let order = |lease: &Lease| (!self.node.peers.is_linked(lease.incarnation), lease.load);
        self.peer(self.takers().into_iter().min_by_key(order)?.incarnation)
    }

    /// One of the nodes that take sessions and that a link is up to, another with each turn.
    pub fn linked(&self, turn: usize) -> Option<Peer> {
        let mut linked = self.takers();
        linked.retain(|lease| self.node.peers.is_linked(lease.incarnation));
        linked.sort_unstable_by_key(|lease| lease.incarnation.0);
        self.peer(linked.get(turn.checked_rem(linked.len())?)?.incarnation)
    }

    /// One of the nodes that take sessions and that a link is up to: the one with the fewest
    /// sessions first, and with each turn the next.
    pub fn roomy(&self, turn: usize) -> Option<Peer> {
        let mut linked = self.takers();
        linked.retain(|lease| self.node.peers.is_linked(lease.incarnation));
        linked.sort_unstable_by_key(|lease| (lease.load, lease.incarnation.0));
        self.peer(linked.get(turn.checked_rem(linked.len())?)?.incarnation)
    }

    /// A node through which to call another that cannot be reached from here, with each turn
    /// another one. `None` where that one can be reached, as far as is known, or no node is
    /// linked to both.
    pub fn relay(&self, owner: &Peer, turn: usize) -> Option<Peer> {
        let is_incompatible = owner.link.is_incompatible.load(Ordering::Relaxed);
        if !owner.link.calls.is_unreachable() || is_incompatible {
            return None;
        }
        let (own, owner) = (self.node.incarnation, owner.incarnation());
        let mut relays = self.node.members.leases();
        relays.retain(|lease| {
            ![own, owner].contains(&lease.incarnation) && lease.linked.contains(&owner)
        });
        relays.sort_unstable_by_key(|lease| lease.incarnation.0);
        let relays: Vec<_> =
            relays.iter().filter_map(|lease| self.reachable(lease.incarnation)).collect();
        relays.get(turn.checked_rem(relays.len())?).cloned()
    }

    /// A node, where a link to call it is up.
    pub fn reachable(&self, incarnation: Incarnation) -> Option<Peer> {
        self.peer(incarnation).filter(|peer| peer.link.calls.is_up())
    }

    /// The other nodes that take sessions.
    fn takers(&self) -> Vec<Lease> {
        let own = self.node.incarnation;
        let mut leases = self.node.members.leases();
        leases.retain(|lease| {
            lease.incarnation != own && !lease.draining && !lease.address.is_empty()
        });
        leases
    }

    fn peer(&self, incarnation: Incarnation) -> Option<Peer> {
        let link = self.node.members.link_to(incarnation)?;
        Some(Peer { node: self.node.clone(), link })
    }

    /// Tells the others that this node takes no new sessions.
    pub fn set_draining(&self, draining: bool) {
        self.node.draining.store(draining, Ordering::Relaxed);
        self.node.renew_now.notify_one();
    }

    /// Gives the lease up and closes every link. What peers asked for and did not get is
    /// lost to them.
    pub async fn leave(&self) {
        self.node.lease.give_up();
        self.leaving.cancel();
        self.left.cancelled().await;
        if !self.node.peers.linked().is_empty() {
            // Peers that still call this node are told that nothing was started; when they
            // have looked at the leases once more, they call it no more.
            let look = Duration::from_millis(self.node.settings.renew_ms);
            tokio::time::sleep(look + LAST_CALLS).await;
        }
        self.node.closing.cancel();
    }
}

/// Binds the listener, where there is to be one.
async fn bind(address: &str) -> Result<Option<(TcpListener, std::net::SocketAddr)>, Error> {
    if address.is_empty() {
        return Ok(None);
    }
    let failed = |source| Error::Listen { address: address.to_owned(), source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok(Some((listener, bound)))
}

/// Another node.
#[derive(Clone)]
pub struct Peer {
    node: Arc<Node>,
    link: Arc<Link>,
}

impl Peer {
    /// Which process it is.
    pub fn incarnation(&self) -> Incarnation {
        self.link.incarnation
    }

    /// The newest version of payloads that this node and the peer read; `None` where there was
    /// never a link to the peer.
    pub fn payload_version(&self) -> Option<u32> {
        self.link.payload_version.get().copied()
    }

    /// Sends a call. Never waits; replies, and failure, are told by what is returned.
    pub fn call(&self, call: Bytes) -> ForwardedCall {
        if self.node.closing.is_cancelled() {
            return ForwardedCall(Err(Some(CallError::NotStarted)));
        }
        let (id, connect) = match self.link.calls.open(call) {
            Ok(opened) => opened,
            Err(error) => {
                return ForwardedCall(Err(Some(error)));
            }
        };
        let calling = ForwardedCall(Ok(Underway { link: self.link.clone(), id }));
        if connect {
            dial::connect(&self.node, &self.link);
        }
        calling
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({} at {})", self.link.incarnation, self.link.address)
    }
}

/// A call under way. Dropping it tells the callee that its caller is gone.
pub struct ForwardedCall(Result<Underway, Option<CallError>>);

impl ForwardedCall {
    /// The next reply; `None` after the last, or after an error.
    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, CallError>>> {
        match &mut self.0 {
            Ok(underway) => underway.link.calls.poll_reply(underway.id, context),
            Err(error) => Poll::Ready(error.take().map(Err)),
        }
    }

    /// Is nothing more to come, as far as is known?
    pub fn is_over(&self) -> bool {
        match &self.0 {
            Ok(underway) => underway.link.calls.is_over(underway.id),
            Err(error) => error.is_none(),
        }
    }
}

/// A call that a link knows of.
struct Underway {
    link: Arc<Link>,
    id: u64,
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.link.calls.forget(self.id);
    }
}
