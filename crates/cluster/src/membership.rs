//! How a node joins a cluster, or is one on its own.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use peering::{LocalNode, Trust, Versions};
use store::{Incarnation, Store};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::{self, Clock};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::failovers::Failovers;
use crate::listen::listen;
use crate::location_cache::LocationCache;
use crate::members::Members;
use crate::node::MemberNode;
use crate::node_lease::NodeLease;
use crate::peers::Peers;
use crate::serve::{Load, PeerCallHandler};
use crate::settings::Settings;
use crate::upkeep;

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
    pub fn serve(self, handler: Arc<dyn PeerCallHandler>) -> Cluster {
        if let Some(sockets) = self.sockets {
            let node = self.cluster.node.clone();
            self.cluster.node.runtime.spawn(listen(node, sockets, handler));
        }
        self.cluster
    }
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
        let node = MemberNode {
            incarnation: Incarnation(random),
            name: "".into(),
            store,
            load: Load::default(),
            is_alone: true,
            local,
            lease: NodeLease::permanent(clock::boottime(), settings.timing()),
            failovers: Failovers::never(),
            changes: watch::Sender::new(0),
            peers: Peers::default(),
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
    pub(crate) async fn join_by(
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
            Some((_, bound)) => settings.announced_address(*bound)?,
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
        let node = Arc::new(MemberNode {
            incarnation: Incarnation(random),
            name,
            store,
            load: Load::default(),
            is_alone: false,
            local,
            lease: NodeLease::new(clock, settings.timing()),
            failovers: Failovers::new(settings.stabilisation()),
            changes: watch::Sender::new(0),
            peers: Peers::default(),
            members: Members::new(settings.limits()),
            location_cache: LocationCache::new(settings.location_cache_max),
            draining: false.into(),
            renew_now: tokio::sync::Notify::new(),
            look_now: tokio::sync::Notify::new(),
            closing: CancellationToken::new(),
            runtime: Handle::current(),
            settings,
        });
        peering::install_flush_queue();
        // What the system gave this process to listen at, it has taken from no other.
        let is_given =
            listener.as_ref().is_none_or(|(_, bound)| *node.local.address == *bound.to_string());
        if !is_given {
            node.refuse_shared_address().await?;
        }
        node.take_first_lease().await.map_err(Error::Store)?;

        let (leaving, left) = (CancellationToken::new(), CancellationToken::new());
        tokio::spawn(upkeep::keep_lease(node.clone(), leaving.clone(), left.clone().drop_guard()));
        tokio::spawn(upkeep::keep_looking(node.clone(), leaving.clone()));
        tokio::spawn(upkeep::mark_former_nodes(node.clone()));
        tracing::info!(incarnation = %node.incarnation, address = %node.local.address, "joined");
        let sockets = listener.map(|(sockets, _)| sockets);
        Ok(Membership { cluster: Self { node, leaving, left }, sockets })
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
