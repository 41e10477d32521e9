//! What one thread asks in one of its turns, while another keeps the connection.

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

/// How many ask at once: what they send fits into one read of the server's.
const ASKING: usize = 16;

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A store whose connection lives on a thread of its own, for as long as the sender.
fn kept_elsewhere(server: &Server) -> (oneshot::Sender<()>, Arc<Redis>) {
    let ((stay, stays), (tell, told)) = (oneshot::channel(), mpsc::channel());
    let url = server.url();
    std::thread::spawn(move || {
        one_thread().block_on(async {
            tell.send(Arc::new(open(&url))).expect("somebody waits");
            let _left = stays.await;
        });
    });
    (stay, told.recv().expect("a store"))
}

#[test]
fn what_a_thread_asks_in_one_turn_is_read_in_one_go() {
    let server = Server::start(&[]);
    let (_stay, store) = kept_elsewhere(&server);
    one_thread().block_on(async {
        let mut admin = server.connect().await;
        let sessions = join_all((0..ASKING).map(|_| Session::made(&store))).await;
        for number in 1..=20 {
            let before = reads(&mut admin).await;
            let taken = join_all(sessions.iter().map(|s| s.append(&store, number, "x"))).await;
            assert!(taken.iter().all(Result::is_ok), "{taken:?}");
            // The question is one of them.
            let goes = reads(&mut admin).await - before - 1;
            assert!(goes <= 2, "{ASKING} appends were read in {goes} goes");
        }
    });
}

/// How often the server has read from a connection.
async fn reads(admin: &mut MultiplexedConnection) -> u64 {
    let info: String = run(admin, &["INFO", "stats"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
    line.and_then(|reads| reads.trim().parse().ok()).expect("a number of reads")
}

/// A thread may have one runtime after another, as tests have.
#[test]
fn a_turn_that_ends_with_its_runtime_keeps_nobody_waiting() {
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
async fn of_calls_that_go_together_each_has_its_own_answer() {
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
