//! Measures an append, in memory and in Redis: `cargo bench -p store --bench append`, which
//! starts a Redis of its own. `redis.rs` measures the other operations on Redis.
#![allow(missing_docs, reason = "criterion makes undocumented functions")]
#![allow(dead_code, reason = "the servers and fixtures are the tests', which use more of them")]

#[path = "../tests/redis/fixture.rs"]
mod fixture;
#[path = "../tests/redis/server.rs"]
mod server;

use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use store::{Batch, Memory, Store};
use tokio::runtime::{Builder, Runtime};

use crate::fixture::{LONG, Session, open};
use crate::server::Server;

/// The number of entries that stay replayable.
const KEPT: u64 = 32;
/// The length of an entry.
const ENTRY_BYTES: usize = 300;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Appends one entry after another to one session's log.
fn measure(criterion: &mut Criterion, name: &str, runtime: &Runtime, store: &dyn Store) {
    let session = Session::new();
    let made = store.create(&session.id, session.record.clone(), LONG);
    runtime.block_on(made).expect("a new session is made");
    let payload = "x".repeat(ENTRY_BYTES);
    let mut number = 0_u64;
    let mut next = || {
        number += 1;
        let floor = number.saturating_sub(KEPT).max(1);
        Batch { floor, ..session.batch(number, &payload) }
    };
    criterion.bench_function(name, |bencher| {
        let append = |batch| runtime.block_on(store.append(batch)).expect("taken");
        bencher.iter_batched(&mut next, append, BatchSize::SmallInput);
    });
}

fn append(criterion: &mut Criterion) {
    let runtime = runtime();
    measure(criterion, "append/memory", &runtime, &Memory::default());
    let server = Server::start(&[]);
    let _inside = runtime.enter();
    measure(criterion, "append/redis", &runtime, &open(&server.url()));
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = append
}
criterion_main!(benches);
