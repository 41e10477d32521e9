//! What operations on Redis cost: `cargo bench -p store --bench redis`, which starts a
//! server of its own. Prints what it measured and judges nothing.
#![allow(dead_code, reason = "the servers and fixtures are the tests', which use more of them")]
#![expect(clippy::print_stderr, reason = "whoever measures reads it there")]

#[path = "../tests/redis/fixture.rs"]
mod fixture;
#[path = "../tests/redis/server.rs"]
mod server;

use std::time::Instant;

use futures_util::future::join_all;
use store::Store;

use crate::fixture::{Session, open};
use crate::server::{Server, run};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    const ROUNDS: u64 = 2_000;
    const SESSIONS: u64 = 1_000;
    let server = Server::start(&[]);
    let store = open(&server.url());
    let mut admin = server.connect().await;
    let payload = "x".repeat(300);

    let mut times = Vec::new();
    let session = Session::made(&store).await;
    for number in 1..=ROUNDS {
        let start = Instant::now();
        let batch = store::Batch {
            floor: number.saturating_sub(32).max(1),
            ..session.batch(number, &payload)
        };
        store.append(batch).await.expect("taken");
        times.push(start.elapsed());
    }
    times.sort();
    eprintln!("append alone: median {:?}, p99 {:?}", times[1_000], times[1_980]);

    let mut sessions = Vec::new();
    let start = Instant::now();
    for _ in 0..SESSIONS {
        sessions.push(Session::made(&store).await);
    }
    eprintln!("create: {:?} each", start.elapsed() / SESSIONS as u32);
    let () = run(&mut admin, &["CONFIG", "RESETSTAT"]).await;
    let start = Instant::now();
    for round in 1..=10 {
        let appends = sessions.iter().map(|session| session.append(&store, round, &payload));
        for answer in join_all(appends).await {
            answer.expect("taken");
        }
    }
    let each = start.elapsed() / (10 * SESSIONS as u32);
    let stats: String = run(&mut admin, &["INFO", "commandstats"]).await;
    let line = stats.lines().find(|line| line.contains("evalsha")).unwrap_or_default();
    eprintln!("appends of {SESSIONS} at once: {each:?} each; {line}");

    let start = Instant::now();
    for session in &sessions {
        session.claimed_by(&session.heir(), &store).await.expect("claimed");
    }
    eprintln!("claim with 10 entries: {:?} each", start.elapsed() / SESSIONS as u32);
}
