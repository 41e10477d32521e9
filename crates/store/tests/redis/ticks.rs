//! Tests that the commands of one event-loop tick are sent together, to a connection on another
//! thread.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use store::Store;
use store::redis::Redis;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::fixture::{Session, open};
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
            tell.send(Arc::new(open(&url))).expect("the test has ended");
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
