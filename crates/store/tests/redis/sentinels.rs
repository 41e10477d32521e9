//! Tests on one primary, one replica and three Sentinels.

use std::time::{Duration, Instant};

use store::redis::Settings;
use store::{Error, Lease, Store};
use tokio::time::sleep;

use crate::fixture::{LONG, Session, at_last, lease, look, open, open_with, unavailable};
use crate::server::Server;

struct Watched {
    primary: Server,
    replica: Server,
    sentinels: Vec<Server>,
}

impl Watched {
    /// A primary with its replica, known to all three Sentinels.
    async fn start(password: Option<&str>) -> Self {
        let primary = Server::start(&["--repl-diskless-sync-delay", "0"]);
        let of = primary.port.to_string();
        let replica = Server::start(&["--replicaof", "127.0.0.1", &of]);
        let sentinels: Vec<_> = (0..3).map(|_| Server::sentinel(primary.port, password)).collect();
        let watched = Self { primary, replica, sentinels };
        watched.until_they_agree().await;
        watched
    }

    async fn until_they_agree(&self) {
        let until = Instant::now() + Duration::from_secs(30);
        for sentinel in &self.sentinels {
            loop {
                let info: String = sentinel.run(&["INFO", "sentinel"]).await;
                if info.contains("status=ok") && info.contains("slaves=1,sentinels=3") {
                    break;
                }
                assert!(Instant::now() < until, "{info}");
                sleep(Duration::from_millis(20)).await;
            }
        }
        let until_online = |info: String| info.contains("master_link_status:up");
        while !until_online(self.replica.run(&["INFO", "replication"]).await) {
            assert!(Instant::now() < until, "the replica did not connect");
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn url(&self) -> String {
        let addresses: Vec<_> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/roundhouse", addresses.join(","))
    }
}

/// The primary dies before its last writes are replicated. The owner still has them, so nothing
/// is lost. A node that has not acknowledged the new primary claims nothing.
#[tokio::test]
async fn a_failover_that_forgets_the_last_writes_loses_nothing_while_the_owner_lives() {
    let watched = Watched::start(None).await;
    let store = open_with(Settings { timeout_ms: 300, ..Settings::at(watched.url()) });
    let before = at_last(|| store.primaries()).await.expect("read");
    let old = Session::made(&store).await;
    old.append(&store, 1, "a b").await.expect("stored");
    let replicated: usize = watched.primary.run(&["WAIT", "1", "5000"]).await;
    assert_eq!(replicated, 1);

    // From here on the replica receives no writes.
    let () = watched.replica.run(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let owner = old.heir();
    old.claimed_by(&owner, &store).await.expect("claimed");
    owner.append(&store, 3, "c").await.expect("stored");
    let ended = Session::made(&store).await;
    watched.primary.kill();

    // The record of the new primary names the owner before.
    let answer = at_last(|| owner.append(&store, 4, "d")).await;
    match answer {
        Err(Error::Fenced(by)) => assert!(owner.record.came_after(by.token)),
        other => panic!("expected the fence of the former owner, not {other:?}"),
    }
    unavailable(old.claimed_by(&old.heir(), &store).await);
    unavailable(store.read(&ended.id).await);
    let after = look(&store).await;
    assert_ne!(before, after);
    let ring = owner.batch(1, "a b c d");
    store.reassert(owner.record.clone(), ring).await.expect("re-asserted");
    assert_eq!(owner.log(&store).await, "a b c d");
    owner.append(&store, 5, "e").await.expect("goes on");
    let by_old = old.append(&store, 3, "x").await;
    assert!(matches!(by_old, Err(Error::Fenced(by)) if by == owner.owner), "{by_old:?}");
}

/// One Sentinel is unreachable, and the servers have passwords.
#[tokio::test]
async fn writes_go_on_after_a_failover_also_with_a_dead_sentinel_and_passwords() {
    let watched = Watched::start(Some("sentinels-own")).await;
    watched.sentinels[0].kill();
    let settings = Settings {
        sentinel_password: "sentinels-own".into(),
        timeout_ms: 300,
        ..Settings::at(watched.url())
    };
    let store = open_with(settings);
    let session = at_last(|| async {
        let session = Session::new();
        session.make(&store).await.map(|()| session)
    });
    let session = session.await.expect("created");
    let node = lease();
    store.renew(node.clone(), LONG).await.expect("renewed");
    let replicated: usize = watched.primary.run(&["WAIT", "1", "5000"]).await;
    assert_eq!(replicated, 1);
    watched.primary.kill();
    session.append_at_last(&store, 1, "a").await;
    let node = Lease { renewal: 2, acknowledged: 1, ..node };
    assert!(store.renew(node, LONG).await.expect("renewed").was_there);

    let store = open(&watched.url());
    let why = unavailable(store.read(&session.id).await);
    assert!(why.contains("sentinel"), "{why}");
}
