//! Measures the cost of a call to another node over one link on this machine. Each node runs on a
//! thread of its own.
#![allow(missing_docs, reason = "criterion makes undocumented functions")]

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cluster::{
    CallError, Cluster, Peer, PeerCallHandler, Replies, SessionLocation, Settings, Versions,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use protocol::SessionId;
use store::{Digest, Memory, Owner, Record, RecordStatus, State, Store, Token};
use tokio::runtime::{Builder, Runtime};

/// About as long as a small tools/call.
const CALL: Bytes = Bytes::from_static(&[b'x'; 500]);

struct Echo;

impl PeerCallHandler for Echo {
    fn handle_call(&self, call: Bytes) -> Option<Box<dyn Replies>> {
        Some(Box::new(Once(Some(call))))
    }
}

struct Once(Option<Bytes>);

impl Replies for Once {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        Poll::Ready(self.0.take().map(Ok))
    }
}

fn node(store: &Arc<Memory>) -> (Runtime, Cluster) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let settings = Settings {
        listen: "127.0.0.1:0".to_owned(),
        secret: "no secret, only a bench of two nodes".to_owned(),
        ..Settings::default()
    };
    let membership =
        runtime.block_on(Cluster::join(settings, store.clone(), Versions::UNANNOUNCED)).unwrap();
    let cluster = membership.serve(Arc::new(Echo));
    (runtime, cluster)
}

/// Locates `to` from `from`, as the owner of a session.
async fn peer(store: &Memory, from: &Cluster, to: &Cluster) -> Peer {
    let session = SessionId::parse("a-session").unwrap();
    let record = Record {
        owner: Owner { token: Token::first(1), node: to.incarnation() },
        former: Vec::new(),
        tenant: "acme".into(),
        principal: Digest([0; 32]),
        revision: "2025-11-25".into(),
        initialize: [].into(),
        state: State::default(),
        status: RecordStatus::Owned,
    };
    store.create(&session, record, Duration::from_secs(600)).await.unwrap();
    match from.locate(&session, true).await.unwrap() {
        SessionLocation::There(peer) => peer,
        location => panic!("expected a peer, found {location:?}"),
    }
}

async fn call(peer: &Peer) {
    let mut calling = peer.call(CALL);
    while let Some(reply) = poll_fn(|context| calling.poll_next(context)).await {
        reply.unwrap();
    }
}

/// Makes `calls` calls, `at_once` of them concurrently. Returns the elapsed time.
async fn calls(peer: &Peer, calls: u64, at_once: u64) -> Duration {
    let start = Instant::now();
    let callers: Vec<_> = (0..at_once)
        .map(|caller| {
            let share = calls / at_once + u64::from(caller < calls % at_once);
            let peer = peer.clone();
            tokio::spawn(async move {
                for _ in 0..share {
                    call(&peer).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    start.elapsed()
}

fn peer_calls(criterion: &mut Criterion) {
    let store = Arc::new(Memory::default());
    let (here, from) = node(&store);
    let (_there, to) = node(&store);
    let peer = here.block_on(peer(&store, &from, &to));
    let mut group = criterion.benchmark_group("peer_call");
    group.throughput(Throughput::Elements(1));
    for at_once in [1, 64] {
        let peer = peer.clone();
        group.bench_function(format!("{at_once}_at_once"), |bencher| {
            bencher.iter_custom(|iterations| {
                let peer = peer.clone();
                let calling = async move { calls(&peer, iterations, at_once).await };
                here.block_on(here.spawn(calling)).unwrap()
            });
        });
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(3)).sample_size(20);
    targets = peer_calls
}
criterion_main!(benches);
