//! Measures operations on Redis: `cargo bench -p store --bench redis`, which starts a server of
//! its own. It prints the measurements and has no thresholds.
#![allow(dead_code, reason = "the servers and fixtures are the tests', which use more of them")]
#![expect(clippy::print_stderr, reason = "the measurements are printed there")]

#[path = "../tests/redis/fixture.rs"]
mod fixture;
#[path = "../tests/redis/server.rs"]
mod server;

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use store::Store;
use store::redis::Settings;
use tokio::runtime::Builder;
use tokio::time::{interval_at, sleep};

use crate::fixture::{Session, open, open_with};
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

    for _ in 0..3 {
        for window_ms in [0, 1, 5] {
            measure_window(&server, window_ms).await;
        }
    }
}

/// Prints the processor time of an append in Redis and in this process, with 64 streams that
/// have an event each 50 ms. The connection runs on another thread, as in a node.
async fn measure_window(server: &Server, append_window_ms: u64) {
    const STREAMS: u32 = 64;
    const EVERY: Duration = Duration::from_millis(50);
    const EVENTS: u64 = 120;
    let (stay, stays) = tokio::sync::oneshot::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    let url = server.url();
    let connection = std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let store = open_with(Settings { append_window_ms, ..Settings::at(url) });
            sender.send(Arc::new(store)).expect("the store is waited for");
            let _ = stays.await;
        });
    });
    let store = receiver.recv().expect("a store");
    let sessions = join_all((0..STREAMS).map(|_| Session::made(&store))).await;
    // The counts of the creations are reset.
    sleep(Duration::from_millis(200)).await;
    let mut admin = server.connect().await;
    let (redis, own) = (redis_cpu(&mut admin).await, own_cpu());
    let begin = tokio::time::Instant::now();
    let streams = (0..).zip(&sessions).map(|(place, session)| {
        let store = &store;
        async move {
            let mut ticks = interval_at(begin + EVERY * place / STREAMS, EVERY);
            for number in 1..=EVENTS {
                ticks.tick().await;
                let floor = number.saturating_sub(32).max(1);
                let batch = store::Batch { floor, ..session.batch(number, "event") };
                store.append(batch).await.expect("taken");
            }
        }
    });
    join_all(streams).await;
    let appends = f64::from(STREAMS) * EVENTS as f64;
    let each = |seconds: f64| seconds * 1e6 / appends;
    eprintln!(
        "window of {append_window_ms} ms: {:.1} us of redis and {:.1} us of this process an append, \
         in {:.1} s",
        each(redis_cpu(&mut admin).await - redis),
        each(own_cpu() - own),
        begin.elapsed().as_secs_f64(),
    );
    drop((store, stay));
    connection.join().expect("the connection's thread ends");
}

/// The processor time of the server, in seconds.
async fn redis_cpu(admin: &mut redis::aio::MultiplexedConnection) -> f64 {
    let info: String = run(admin, &["INFO", "cpu"]).await;
    let times = info
        .lines()
        .filter(|line| line.starts_with("used_cpu_sys:") || line.starts_with("used_cpu_user:"));
    times.filter_map(|line| line.split(':').nth(1)?.trim().parse::<f64>().ok()).sum()
}

/// The processor time of this process, in seconds.
fn own_cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> =
        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|at| fields[*at].parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}
