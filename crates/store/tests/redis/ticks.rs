//! Tests that the commands of one event-loop tick are sent together, to a connection on another
//! thread.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use rustix::time::{ClockId, clock_gettime};
use store::redis::{Redis, Settings};
use store::{Batch, Store};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::fixture::{Session, open, open_with};
use crate::server::{Server, run};

/// The number of concurrent appends: their commands fit into one read of the server.
const ASKING: usize = 16;

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A store whose connection runs on a thread of its own, until the sender is dropped.
fn kept_elsewhere(server: &Server) -> (oneshot::Sender<()>, Arc<Redis>) {
    let ((stay, stays), (tell, told)) = (oneshot::channel(), mpsc::channel());
    let url = server.url();
    std::thread::spawn(move || {
        one_thread().block_on(async {
            let settings = Settings { timeout_ms: 10_000, ..Settings::at(&url) };
            tell.send(Arc::new(open_with(settings))).expect("the test has ended");
            let _left = stays.await;
        });
    });
    (stay, told.recv().expect("a store"))
}

#[test]
fn commands_of_one_tick_are_read_together() {
    let server = Server::start(&[]);
    let (_stay, store) = kept_elsewhere(&server);
    one_thread().block_on(async {
        let mut admin = server.connect().await;
        let sessions = join_all((0..ASKING).map(|_| Session::made(&store))).await;
        for number in 1..=20 {
            let before = reads(&mut admin).await;
            let taken = join_all(sessions.iter().map(|s| s.append(&store, number, "x"))).await;
            assert!(taken.iter().all(Result::is_ok), "{taken:?}");
            // The command for the counter is one of the reads.
            let reads = reads(&mut admin).await - before - 1;
            assert!(reads <= 2, "{ASKING} appends took {reads} reads");
        }
    });
}

/// The number of reads that the server has made from connections.
async fn reads(admin: &mut MultiplexedConnection) -> u64 {
    let info: String = run(admin, &["INFO", "stats"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
    line.and_then(|reads| reads.trim().parse().ok()).expect("a number of reads")
}

/// A thread may have several runtimes, one after the other.
#[test]
fn a_tick_that_ends_with_its_runtime_leaves_no_caller_waiting() {
    let server = Server::start(&[]);
    let (_stay, store) = kept_elsewhere(&server);
    let first = one_thread();
    let session = first.block_on(async {
        let session = Session::made(&store).await;
        assert!(session.append(&store, 1, "a").now_or_never().is_none());
        session
    });
    drop(first);
    one_thread().block_on(async {
        let patience = Duration::from_secs(5);
        let read = timeout(patience, store.read(&session.id)).await.expect("answered");
        assert!(read.expect("read").is_some());
    });
}

#[tokio::test]
async fn each_command_of_one_tick_has_its_own_answer() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    let (one, other) = (Session::made(&store).await, Session::new());
    let (good, hole, missing) = tokio::join!(
        one.append(&store, 1, "a"),
        one.append(&store, 5, "e"),
        other.append(&store, 1, "b")
    );
    assert!(good.is_ok(), "{good:?}");
    assert!(matches!(hole, Err(store::Error::Hole { last: Some(1) })), "{hole:?}");
    assert!(matches!(missing, Err(store::Error::Missing)), "{missing:?}");
}

/// That thread serves others meanwhile.
#[test]
fn a_long_entry_takes_no_time_of_the_thread_of_its_caller() {
    const ENTRY_BYTES: usize = 8 << 20;
    let server = Server::start(&[]);
    let (_stay, store) = kept_elsewhere(&server);
    one_thread().block_on(async {
        let session = Session::made(&store).await;
        let entry = Bytes::from(vec![b'x'; ENTRY_BYTES]);
        let copying = of_this_thread(async { std::hint::black_box(entry.to_vec()) }).await.1;
        let mut times = Vec::new();
        for number in 1..=5 {
            let entries = vec![entry.clone()];
            let batch = Batch { floor: number, entries, ..session.batch(number, "") };
            let (appended, time) = of_this_thread(store.append(batch)).await;
            assert!(appended.is_ok(), "{appended:?}");
            times.push(time);
        }
        times.sort();
        assert!(times[2] < copying, "{times:?}, and {copying:?} for one copy");
        let log = store.read_log(&session.id).await.expect("read");
        assert!(log.len() == 1 && log[0].0 == 5 && log[0].1 == entry, "{} entries", log.len());
    });
}

/// The result, and the time of the core that this thread had meanwhile.
async fn of_this_thread<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    let before = now();
    let done = work.await;
    (done, now() - before)
}

#[test]
fn a_short_command_waits_for_few_long_ones() {
    let server = Server::start(&[]);
    let (_stay, store) = kept_elsewhere(&server);
    let beside = || one_thread().block_on(read_beside_long_commands(&store));
    // The machine may be busy with other tests meanwhile.
    let parts: Vec<_> = (0..3).map(|_| beside()).collect();
    assert!(parts.iter().any(|part| *part < 0.2), "{parts:?} of the time of all long commands");
}

/// The time of a read while many long entries are appended, as a part of the time that all of them take.
async fn read_beside_long_commands(store: &Redis) -> f64 {
    let short = Session::made(store).await;
    let sessions = join_all((0..24).map(|_| Session::made(store))).await;
    let entry = Bytes::from(vec![b'x'; 4 << 20]);
    let start = Instant::now();
    let append = async |session: &Session| {
        let batch = Batch { entries: vec![entry.clone()], ..session.batch(1, "") };
        let appended = store.append(batch).await;
        assert!(appended.is_ok(), "{appended:?}");
        start.elapsed()
    };
    let read = async {
        // The first of them are on their way.
        sleep(Duration::from_millis(10)).await;
        let begun = Instant::now();
        let read = store.read(&short.id).await;
        assert!(matches!(read, Ok(Some(_))), "{read:?}");
        begun.elapsed()
    };
    let (appended, read) = tokio::join!(join_all(sessions.iter().map(append)), read);
    let all = appended.into_iter().max().expect("a time");
    read.as_secs_f64() / all.as_secs_f64()
}
