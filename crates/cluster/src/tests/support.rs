//! Test nodes, with a handler that answers scripted calls.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;
use store::{Digest, Incarnation, Memory, Owner, Record, RecordStatus, State, Store, Token};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::proxy::Proxy;
use crate::{
    CallError, Cluster, ForwardedCall, Peer, PeerCallHandler, Replies, SessionLocation, Settings,
    Versions,
};

/// The longest wait for any expected event.
const PATIENCE: Duration = Duration::from_secs(10);

/// An address of loopback at which nothing listens, and that no other process takes: the kernel gives
/// its port to no connection, and other tests leave it alone.
pub(super) fn free_address() -> SocketAddr {
    let port = super::ports::free_port().expect("a port that no other test process has");
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A handler that answers by the text of a call: `echo …`, `count N`, `large BYTES`, `several N
/// BYTES`, `silence`, `refuse`. `echo` marks its reply as the last one, `count` ends after its last
/// reply.
#[derive(Default)]
pub(super) struct Answers {
    pub(super) calls: AtomicUsize,
    pub(super) replies_made: Arc<AtomicUsize>,
    pub(super) dropped: Arc<AtomicUsize>,
}

impl PeerCallHandler for Answers {
    fn handle_call(&self, call: Bytes) -> Option<Box<dyn Replies>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let text = std::str::from_utf8(&call).unwrap();
        let (what, rest) = text.split_once(' ').unwrap_or((text, ""));
        let (replies, ends) = match what {
            "echo" => (VecDeque::from([call.slice(5..)]), true),
            "count" => {
                let number = rest.parse::<usize>().unwrap();
                ((0..number).map(|n| Bytes::from(n.to_string())).collect(), true)
            }
            "large" => (VecDeque::from([vec![b'x'; rest.parse().unwrap()].into()]), true),
            "several" => {
                let (number, bytes) = rest.split_once(' ').unwrap();
                let body = Bytes::from(vec![b'x'; bytes.parse().unwrap()]);
                (vec![body; number.parse().unwrap()].into(), true)
            }
            "silence" => (VecDeque::new(), false),
            _ => return None,
        };
        let (made, dropped) = (self.replies_made.clone(), self.dropped.clone());
        let knows_the_last = what == "echo";
        Some(Box::new(Answer { replies, ends, knows_the_last, made, dropped }))
    }
}

struct Answer {
    replies: VecDeque<Bytes>,
    ends: bool,
    knows_the_last: bool,
    made: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

impl Replies for Answer {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        match self.replies.pop_front() {
            Some(reply) => {
                self.made.fetch_add(1, Ordering::SeqCst);
                Poll::Ready(Some(Ok(reply)))
            }
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    fn is_over(&self) -> bool {
        self.knows_the_last && self.replies.is_empty()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

pub(super) fn settings() -> Settings {
    Settings {
        listen: "127.0.0.1:0".to_owned(),
        secret: "a secret of these tests, long enough".to_owned(),
        renew_ms: 100,
        window: 4,
        ..Settings::default()
    }
}

/// A node with a runtime of its own, so that it can be killed.
pub(super) struct TestNode {
    runtime: Option<Runtime>,
    pub(super) cluster: Cluster,
    pub(super) answers: Arc<Answers>,
}

impl TestNode {
    pub(super) async fn start(store: &Arc<Memory>) -> Self {
        Self::start_with(settings(), store.clone()).await
    }

    pub(super) async fn start_with(settings: Settings, store: Arc<dyn Store>) -> Self {
        Self::start_node(Versions::UNANNOUNCED, settings, store).await
    }

    /// Starts a node that reads these payload versions.
    pub(super) async fn start_with_versions(oldest: u32, newest: u32, store: &Arc<Memory>) -> Self {
        let versions = Versions { oldest, newest };
        Self::start_node(versions, settings(), store.clone()).await
    }

    async fn start_node(versions: Versions, settings: Settings, store: Arc<dyn Store>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let answers = Arc::new(Answers::default());
        let joining = Cluster::join(settings, store, versions);
        let membership = runtime.spawn(joining).await.unwrap().unwrap();
        let cluster = membership.serve(answers.clone());
        Self { runtime: Some(runtime), cluster, answers }
    }

    /// Starts a node that other nodes reach through a proxy.
    pub(super) async fn start_behind_proxy(
        settings: Settings,
        store: Arc<dyn Store>,
    ) -> (Self, Proxy) {
        let proxy = Proxy::start().await;
        let free = free_address();
        let advertise = proxy.address.clone();
        let settings = Settings { listen: free.to_string(), advertise, ..settings };
        let node = Self::start_with(settings, store).await;
        proxy.route_to(free);
        (node, proxy)
    }

    /// Starts a node as soon as its address is free.
    pub(super) async fn start_soon(settings: Settings, store: Arc<dyn Store>) -> Self {
        let free = async {
            while tokio::net::TcpListener::bind(&settings.listen).await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, free).await.expect("the address should become free");
        Self::start_with(settings, store).await
    }

    /// Waits until `calls` calls have begun at this node.
    pub(super) async fn wait_for_calls(&self, calls: usize) {
        wait_until("calls have begun", || self.answers.calls.load(Ordering::SeqCst) == calls).await;
    }

    /// Ends the node like a killed process: every open socket is closed.
    pub(super) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Locates `other` from this node, as the owner of a new session.
    pub(super) async fn peer(&self, store: &Memory, other: &Self) -> Peer {
        let name = other.cluster.incarnation().to_string();
        create_session_at(store, &name, other.cluster.incarnation()).await;
        match self.find(&name).await {
            SessionLocation::There(peer) => peer,
            location => panic!("expected a peer, found {location:?}"),
        }
    }

    pub(super) async fn find(&self, name: &str) -> SessionLocation {
        self.cluster.locate(&session(name), true).await.unwrap()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(super) fn session(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

/// Creates the record of a session that `node` owns.
pub(super) async fn create_session_at(store: &Memory, name: &str, node: Incarnation) {
    let record = Record {
        owner: Owner { token: Token::first(node.0), node },
        former: Vec::new(),
        tenant: "acme".into(),
        principal: Digest([0; 32]),
        revision: "2025-11-25".into(),
        initialize: [].into(),
        state: State::default(),
        status: RecordStatus::Owned,
    };
    store.create(&session(name), record, PATIENCE).await.unwrap();
}

/// Receives the next reply of a call.
pub(super) async fn next(calling: &mut ForwardedCall) -> Option<Result<String, CallError>> {
    let reply = poll_fn(|context| calling.poll_next(context));
    let reply = timeout(PATIENCE, reply).await.expect("a reply should arrive")?;
    Some(reply.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()))
}

/// Receives all replies of a call.
pub(super) async fn receive_all(calling: &mut ForwardedCall) -> Vec<Result<String, CallError>> {
    let mut replies = Vec::new();
    while let Some(reply) = next(calling).await {
        replies.push(reply);
    }
    replies
}

/// Makes a call and receives all replies.
pub(super) async fn call(peer: &Peer, text: &str) -> Vec<Result<String, CallError>> {
    receive_all(&mut peer.call(Bytes::copy_from_slice(text.as_bytes()))).await
}

/// Waits until the condition holds.
pub(super) async fn wait_until(claim: &str, mut so: impl FnMut() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("condition not met: {claim}"));
}
