//! Nodes of one cluster, each on a thread of its own, so that one can be killed: its work stops,
//! and its sockets are closed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use actors::{Caller, Care, Settings};
use cluster::Cluster;
use store::{Memory, Store};
use tokio::sync::{mpsc, oneshot};

use super::proxy::Proxy;
use super::{PATIENCE, Script, World, wait_until};

/// The shared configuration of a test's nodes.
#[derive(Default)]
pub(crate) struct Common {
    pub(crate) settings: Settings,
    pub(crate) care: Care,
    /// The script of the servers of all nodes.
    pub(crate) script: Arc<Script>,
    /// The store, if it is not the one in memory.
    pub(crate) store: Option<Arc<dyn Store>>,
    /// `cluster.message_bytes_max`, if it is not the default.
    pub(crate) message_bytes_max: Option<usize>,
    /// Whether nodes reach each other through proxies.
    pub(crate) cuttable: bool,
}

impl Common {
    /// Starts this number of nodes, which are linked and may claim sessions.
    pub(crate) async fn nodes<const N: usize>(mut self) -> [Node; N] {
        let store = self.store.take().unwrap_or_else(|| Arc::new(Memory::default()));
        let mut nodes = Vec::new();
        for _ in 0..N {
            nodes.push(Node::start(&self, &store).await);
        }
        let nodes: [Node; N] = nodes.try_into().unwrap_or_else(|_| panic!("as many as made"));
        let is_linked = |node: &Node| {
            let leases = node.cluster.nodes();
            leases.len() == N && leases.iter().all(|lease| lease.linked.len() == N - 1)
        };
        wait_until(|| nodes.iter().all(|node| is_linked(node) && node.cluster.is_stable())).await;
        nodes
    }
}

type Doing = Pin<Box<dyn Future<Output = ()>>>;
type Work = Box<dyn FnOnce(World) -> Doing + Send>;

/// One node of the cluster.
pub(crate) struct Node {
    world: World,
    pub(crate) cluster: Cluster,
    /// The proxy through which other nodes reach it.
    pub(crate) between: Option<Proxy>,
    work: Option<mpsc::UnboundedSender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl std::ops::Deref for Node {
    type Target = World;
    fn deref(&self) -> &World {
        &self.world
    }
}

impl Node {
    async fn start(common: &Common, store: &Arc<dyn Store>) -> Self {
        let (work, works) = mpsc::unbounded_channel();
        let (started, starting) = oneshot::channel();
        let (settings, care) = (common.settings.clone(), common.care);
        let between = if common.cuttable { Some(Proxy::start().await) } else { None };
        let default = cluster::Settings::default();
        let peers = cluster::Settings {
            listen: between.as_ref().map_or("127.0.0.1:0".into(), |it| it.behind.clone()),
            advertise: between.as_ref().map_or(String::new(), |it| it.address.clone()),
            message_bytes_max: common.message_bytes_max.unwrap_or(default.message_bytes_max),
            ..default
        };
        let (script, store) = (Arc::clone(&common.script), Arc::clone(store));
        let thread = thread::spawn(move || {
            let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build();
            let system = actix_rt::System::with_tokio_rt(|| runtime().unwrap());
            system.block_on(async move {
                let world = join(settings, care, script, store, peers).await;
                let _ = started.send(world.clone());
                live(&world, works).await;
            });
        });
        let world = starting.await.expect("the node should start");
        let cluster = world.handle.cluster().clone();
        Self { world, cluster, between, work: Some(work), thread: Some(thread) }
    }

    /// Runs work on the node's own thread, where sessions can be created.
    pub(crate) async fn inside<T, F>(&self, work: impl FnOnce(World) -> F + Send + 'static) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (tell, events) = oneshot::channel();
        let doing = |world| -> Doing {
            let doing = work(world);
            Box::pin(async move {
                let _ = tell.send(doing.await);
            })
        };
        let alive = self.work.as_ref().expect("the node was killed");
        assert!(alive.send(Box::new(doing)).is_ok(), "the node was killed");
        tokio::time::timeout(PATIENCE, events).await.expect("in time").expect("it should be done")
    }

    /// Creates a session on this node that is ready for calls.
    pub(crate) async fn session_of(&self, revision: &'static str) -> Caller {
        self.inside(move |world| async move { world.session_in(revision).await }).await
    }

    /// Ends the node like a killed process.
    pub(crate) fn kill(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the node's thread should not panic");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.work = None;
    }
}

async fn join(
    settings: Settings,
    care: Care,
    script: Arc<Script>,
    store: Arc<dyn Store>,
    peers: cluster::Settings,
) -> World {
    let peers = cluster::Settings {
        secret: "no secret, only a test of these nodes".into(),
        // A short stabilisation after the start.
        renew_ms: 50,
        margin_ms: 100,
        // After a reset of its links, a killed node is distinguished from one behind a firewall by
        // the renewal that a live node would have sent by now.
        ping_ms: 100,
        pong_ms: 300,
        ..peers
    };
    let membership =
        Cluster::join(peers, Arc::clone(&store), actors::PAYLOAD_VERSIONS).await.unwrap();
    let world = World::member(settings, care, script, store, membership);
    world.handle.register();
    world
}

/// Runs work until the node is killed.
async fn live(world: &World, mut works: mpsc::UnboundedReceiver<Work>) {
    while let Some(work) = works.recv().await {
        actix_rt::spawn(work(world.clone()));
    }
}

/// How long a test waits to check that no event arrives.
pub(crate) const MOMENT: Duration = Duration::from_millis(300);
