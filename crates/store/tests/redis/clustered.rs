//! Tests on a Redis Cluster of six processes: three primaries, each with a replica.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use store::redis::Settings;
use store::redis::{slot_of, slot_of_leases};
use store::{Error, Expected, Store};
use tokio::time::sleep;

use crate::fixture::{Session, at_last, look, open, open_with, unavailable};
use crate::server::{Server, free_port};

/// How long the processes may take to find each other.
const START: Duration = Duration::from_secs(30);

/// First and last slot of each primary.
const SLOTS: [(u16, u16); 3] = [(0, 5_460), (5_461, 10_922), (10_923, 16_383)];

/// Six processes. The first three begin as primaries, the others as their replicas.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    /// A cluster that serves every slot.
    pub(crate) async fn start() -> Self {
        let servers: Vec<_> = (0..6)
            .map(|_| {
                let bus = free_port().to_string();
                Server::start(&[
                    "--cluster-enabled",
                    "yes",
                    "--cluster-node-timeout",
                    "1500",
                    "--cluster-port",
                    &bus,
                    "--cluster-replica-validity-factor",
                    "0",
                    "--repl-diskless-sync-delay",
                    "0",
                    "--repl-ping-replica-period",
                    "1",
                ])
            })
            .collect();
        let cluster = Self { servers };
        cluster.introduce().await;
        cluster
    }

    async fn introduce(&self) {
        for (server, (first, last)) in self.servers.iter().zip(SLOTS) {
            let (first, last) = (first.to_string(), last.to_string());
            let () = server.run(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
        }
        for (epoch, server) in (1..).zip(&self.servers) {
            let () = server.run(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]).await;
        }
        let first = self.servers[0].port.to_string();
        let bus: Vec<String> = self.servers[0].run(&["CONFIG", "GET", "cluster-port"]).await;
        for server in &self.servers[1..] {
            let () = server.run(&["CLUSTER", "MEET", "127.0.0.1", &first, &bus[1]]).await;
        }
        self.until("every node knows all others", |info| info.contains("cluster_known_nodes:6"))
            .await;
        for (replica, primary) in self.servers[3..].iter().zip(&self.servers) {
            let id: String = primary.run(&["CLUSTER", "MYID"]).await;
            let () = replica.run(&["CLUSTER", "REPLICATE", &id]).await;
        }
        self.until("every slot is served", |info| info.contains("cluster_state:ok")).await;
        for server in &self.servers[..3] {
            self.replicated(server).await;
        }
    }

    async fn until(&self, what: &str, is_so: fn(&str) -> bool) {
        let until = Instant::now() + START;
        for server in &self.servers {
            while !is_so(&server.run::<String>(&["CLUSTER", "INFO"]).await) {
                assert!(Instant::now() < until, "timed out: {what}");
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    async fn replicated(&self, primary: &Server) {
        let until = Instant::now() + START;
        while !primary.run::<String>(&["INFO", "replication"]).await.contains("state=online") {
            assert!(Instant::now() < until, "no replica connected");
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn url(&self) -> String {
        let seeds: Vec<_> =
            self.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis+cluster://{}", seeds.join(","))
    }

    pub(crate) fn primaries(&self) -> Vec<String> {
        self.servers[..3].iter().map(Server::url).collect()
    }
}

/// A cluster that all tests share.
pub(crate) fn shared() -> &'static Cluster {
    static SHARED: LazyLock<Cluster> = LazyLock::new(|| {
        // Each test has a runtime, in which another one cannot block.
        let starting = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(Cluster::start())
        });
        starting.join().expect("the cluster starts")
    });
    &SHARED
}

/// Batches of sessions on different primaries, in one tick.
#[tokio::test]
async fn batches_for_many_sessions_reach_each_its_own_primary() {
    let store = open(&shared().url());
    let mut sessions = Vec::new();
    for _ in 0..50 {
        sessions.push(Session::made(&store).await);
    }
    for round in 0..3 {
        let appends = sessions.iter().map(|session| session.append(&store, 1 + 2 * round, "a b"));
        let answers = join_all(appends).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    for session in &sessions {
        assert_eq!(session.log(&store).await, "a b a b a b");
    }
    let primaries = store.primaries().await.expect("read");
    assert_eq!(primaries.len(), 3);
    for session in &sessions {
        assert_eq!(
            primaries.iter().filter(|primary| primary.holds_slot(|| slot_of(&session.id))).count(),
            1
        );
    }
    assert_eq!(primaries.iter().filter(|primary| primary.holds_slot(slot_of_leases)).count(), 1);
}

/// The URL may contain any nodes of the cluster, also some that no longer exist.
#[tokio::test]
async fn one_address_of_a_living_server_is_enough() {
    let replica = shared().servers[4].port;
    let gone = free_port();
    let store = open(&format!("redis+cluster://127.0.0.1:{gone},127.0.0.1:{replica}"));
    let session = at_last(|| async {
        let session = Session::new();
        session.make(&store).await.map(|()| session)
    });
    let session = session.await.expect("created");
    session.append(&store, 1, "a").await.expect("stored");
}

/// A node of a cluster with `redis://` would work for a part of the sessions only.
#[tokio::test]
async fn a_cluster_that_is_taken_for_a_single_server_says_so() {
    let store = open(&shared().servers[0].url());
    let why = loop {
        if let Err(why) = Session::new().make(&store).await {
            break why;
        }
    };
    assert!(unavailable::<()>(Err(why)).contains("redis+cluster://"));
}

/// A slot moves with its keys during appends to its session. No entry is lost or duplicated, and
/// operations that are unavailable during the move succeed after it.
#[tokio::test]
async fn a_session_is_appended_to_while_its_slot_moves() {
    let cluster = Cluster::start().await;
    let store = open_with(Settings { timeout_ms: 300, ..Settings::at(cluster.url()) });
    let session = at_last(|| async {
        let session = Session::new();
        session.make(&store).await.map(|()| session)
    });
    let session = session.await.expect("created");
    let (mut number, mut home) = (1, cluster.home_of(&session).await);
    session.append_at_last(&store, number, "e1").await;
    for _ in 0..3 {
        let to = (home + 1) % 3;
        let moving = cluster.move_slot(&session, home, to);
        tokio::pin!(moving);
        loop {
            let word = format!("e{}", number + 1);
            tokio::select! {
                biased;
                () = &mut moving => break,
                () = session.append_at_last(&store, number + 1, &word) => number += 1,
            }
        }
        home = to;
        number += 1;
        session.append_at_last(&store, number, &format!("e{number}")).await;
    }
    let all: Vec<_> = (1..=number).map(|number| format!("e{number}")).collect();
    assert_eq!(session.log(&store).await, all.join(" "));
    assert!(number >= 7, "{number}");
    assert_eq!(cluster.home_of(&session).await, home);
    // A claim that names a primary without the slot is not sent to the one that has it.
    let heir = session.heir();
    let claim = async |at| {
        let expected = Expected::Token(session.owner.token);
        store.claim(&session.id, expected, heir.owner, Some(at), Duration::from_secs(60)).await
    };
    let primaries = look(&store).await;
    let real = cluster.servers[home].run::<String>(&["INFO", "replication"]).await;
    let is_real = |primary: &store::Primary| real.contains(&format!("{:?}", primary.id));
    for primary in primaries.iter().filter(|primary| !is_real(primary)) {
        unavailable(claim(primary.id).await);
    }
    let holder = primaries.iter().find(|primary| is_real(primary)).expect("kept");
    at_last(|| claim(holder.id)).await.expect("claimed");
}

/// A primary dies. Its sessions wait until the replica has replaced it; other sessions do not wait.
#[tokio::test]
async fn a_replica_takes_over_and_the_change_can_be_seen() {
    let cluster = Cluster::start().await;
    let store = open_with(Settings { timeout_ms: 300, ..Settings::at(cluster.url()) });
    let before = at_last(|| store.primaries()).await.expect("read");
    let mut sessions: Vec<Option<Session>> = vec![None, None, None];
    while sessions.iter().any(Option::is_none) {
        let session = Session::made(&store).await;
        session.append(&store, 1, "a").await.expect("stored");
        let home = cluster.home_of(&session).await;
        sessions[home] = Some(session);
    }
    let [Some(orphan), Some(other), _] = &sessions[..] else { unreachable!() };
    // At first the primary is only paused. Other primaries answer commands of the same tick.
    cluster.servers[0].pause();
    let timed = async |session: &Session| {
        let start = Instant::now();
        (session.append(&store, 2, "b").await, start.elapsed())
    };
    let ((lost, waited), (taken, took)) = tokio::join!(timed(orphan), timed(other));
    taken.expect("the other primary answers");
    unavailable(lost);
    assert!(took * 2 < waited && waited < Duration::from_secs(2), "{took:?}, {waited:?}");
    // A primary that does not answer counts as replaced only when another one has its slots.
    let silent =
        before.iter().find(|primary| primary.holds_slot(|| slot_of(&orphan.id))).expect("kept");
    let answering = look(&store).await;
    assert!(answering.len() == 2 && !silent.is_replaced_by(&answering), "{answering:?}");
    cluster.servers[0].kill();
    // Appends succeed as soon as there is a new primary. The owner re-asserts what the primary
    // lost, if anything. Claims wait until the new primary is acknowledged.
    let answer = at_last(|| orphan.append(&store, 2, "b")).await;
    match answer {
        Ok(_) => {}
        Err(Error::Hole { .. } | Error::Missing) => {
            let ring = orphan.batch(1, "a b");
            store.reassert(orphan.record.clone(), ring).await.expect("re-asserted");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(orphan.log(&store).await, "a b");
    let heir = orphan.heir();
    unavailable(orphan.claimed_by(&heir, &store).await);
    let after = loop {
        let after = look(&store).await;
        if after.iter().any(|primary| primary.holds_slot(|| slot_of(&orphan.id))) {
            break after;
        }
        sleep(Duration::from_millis(20)).await;
    };
    let id = |primaries: &[store::Primary], session: &Session| {
        primaries
            .iter()
            .find(|primary| primary.holds_slot(|| slot_of(&session.id)))
            .map(|primary| primary.id)
    };
    assert_ne!(id(&before, orphan), id(&after, orphan));
    assert!(silent.is_replaced_by(&after));
    assert_eq!(id(&before, other), id(&after, other));
    at_last(|| orphan.claimed_by(&heir, &store)).await.expect("claimed");
}

impl Cluster {
    /// The index of the primary that keeps the session.
    async fn home_of(&self, session: &Session) -> usize {
        let key = format!("rh:{{{}}}", session.id.as_str());
        let slot: u16 = self.servers[1].run(&["CLUSTER", "KEYSLOT", &key]).await;
        for (place, server) in self.servers[..3].iter().enumerate() {
            let nodes: String = server.run(&["CLUSTER", "NODES"]).await;
            let own = nodes.lines().find(|line| line.contains("myself")).expect("itself");
            let keeps = own.split_whitespace().skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let bounds = (first.parse::<u16>(), last.parse::<u16>());
                matches!(bounds, (Ok(first), Ok(last)) if (first..=last).contains(&slot))
            });
            if keeps {
                return place;
            }
        }
        panic!("no primary keeps slot {slot}");
    }

    /// Moves the session's slot slowly and key by key, as an operator does.
    async fn move_slot(&self, session: &Session, from: usize, to: usize) {
        let key = format!("rh:{{{}}}", session.id.as_str());
        let [source, target] = [&self.servers[from], &self.servers[to]];
        let slot = source.run::<u16>(&["CLUSTER", "KEYSLOT", &key]).await.to_string();
        let source_id: String = source.run(&["CLUSTER", "MYID"]).await;
        let target_id: String = target.run(&["CLUSTER", "MYID"]).await;
        let () = target.run(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await;
        let () = source.run(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await;
        let port = target.port.to_string();
        loop {
            sleep(Duration::from_millis(50)).await;
            let keys: Vec<String> = source.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"]).await;
            let Some(key) = keys.first() else { break };
            let _: String = source.run(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
        }
        for server in [target, source] {
            let () = server.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await;
        }
    }
}
