//! Joins a node to a cluster, or sets up a cluster of one.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use peering::{LocalNode, Versions};
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
use crate::revocations::Revocations;
use crate::serve::{Load, PeerCallHandler};
use crate::settings::Settings;
use crate::upkeep;

/// A node that holds its lease and does not answer calls of peers yet. Peers that connect meanwhile
/// wait.
#[must_use = "peers wait until their calls are served"]
pub struct Membership {
    cluster: Cluster,
    /// The listener for peers; `None` if no peer connects to this node.
    sockets: Option<TcpListener>,
}

impl Membership {
    /// The handle of this node's membership.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Starts to answer the calls of peers with `handler`.
    pub fn serve(self, handler: Arc<dyn PeerCallHandler>) -> Cluster {
        if let Some(sockets) = self.sockets {
            let node = self.cluster.node.clone();
            self.cluster.node.runtime.spawn(listen(node, sockets, handler));
        }
        self.cluster
    }
}

impl Cluster {
    /// Acquires a lease and listens for peers, on the runtime of the caller, until
    /// [`Cluster::leave`].
    ///
    /// `versions` are the payload versions that this node reads. A link is established only between
    /// nodes with a common version.
    pub async fn join(
        settings: Settings,
        store: Arc<dyn Store>,
        versions: Versions,
    ) -> Result<Membership, Error> {
        Self::join_by(clock::boottime(), settings, store, versions).await
    }

    /// Creates a cluster of one: its lease is always valid, and no peer connects. No other node may
    /// use the store. Call it within the runtime that the node runs on.
    pub fn alone(store: Arc<dyn Store>) -> Membership {
        // The number identifies this process and is not secret; without random bytes from the
        // operating system, the hasher's are sufficient.
        let random = getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(0));
        let settings = Settings::default();
        let local = LocalNode {
            incarnation: random,
            address: "".into(),
            ping_ms: settings.ping_ms,
            pong_ms: settings.pong_ms,
            versions: Versions::UNANNOUNCED,
            credentials: None,
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
            revocations: Revocations::default(),
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
        // The store holds no lease of this node.
        let left = CancellationToken::new();
        left.cancel();
        let cluster = Self { node: Arc::new(node), leaving: CancellationToken::new(), left };
        Membership { cluster, sockets: None }
    }

    /// Joins a cluster; `clock` measures the lease.
    pub(crate) async fn join_by(
        clock: Clock,
        settings: Settings,
        store: Arc<dyn Store>,
        versions: Versions,
    ) -> Result<Membership, Error> {
        settings.check()?;
        let random = getrandom::u64().map_err(|error| {
            Error::Settings(format!("the operating system returned no random bytes: {error}"))
        })?;
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
            credentials: Some(settings.credentials()?),
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
            revocations: Revocations::default(),
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
        // A port that the operating system chose for this process belongs to no other node.
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

/// Binds the listener, unless `address` is empty.
async fn bind(address: &str) -> Result<Option<(TcpListener, std::net::SocketAddr)>, Error> {
    if address.is_empty() {
        return Ok(None);
    }
    let failed = |source| Error::Listen { address: address.to_owned(), source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok(Some((listener, bound)))
}
