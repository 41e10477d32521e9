//! Times the work that needs no socket: `cargo bench -p micro`.
#![allow(missing_docs, reason = "criterion makes undocumented functions")]

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use micro::WORKS;

fn pure(criterion: &mut Criterion) {
    for work in &WORKS {
        let mut once = (work.prepare)();
        criterion.bench_function(work.name, |bencher| bencher.iter(&mut once));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = pure
}
criterion_main!(benches);
