//! Tests on one server that loses data, runs out of memory, stops, or is unreachable.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use store::redis::Settings;
use store::{
    Error, Expected, Lease, Marking, Presence, RecordStatus, State, StateExtension, Store,
};

use crate::fixture::{LONG, Session, at_last, lease, look, open, open_with, unavailable};
use crate::proxy::Proxy;
use crate::server::{Server, free_port, shared_url};

/// `SCRIPT FLUSH`, by an operator or by a restart that kept the data.
#[tokio::test]
async fn scripts_are_loaded_again_on_a_server_that_lost_them() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    let session = Session::made(&store).await;
    session.append(&store, 1, "a").await.expect("stored");
    let () = server.run(&["SCRIPT", "FLUSH"]).await;
    let appends =
        [(2, "b"), (3, "c"), (5, "e")].map(|(first, word)| session.append(&store, first, word));
    let answers = join_all(appends).await;
    assert!(answers[0].is_ok() && answers[1].is_ok(), "{answers:?}");
    assert!(matches!(answers[2], Err(Error::Hole { last: Some(3) })), "{answers:?}");
    assert_eq!(session.log(&store).await, "a b c");
}

/// The server lost all data, and the owner still has the session.
#[tokio::test]
async fn a_session_outlives_a_restart_without_persistence_if_its_owner_does() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    let session = Session::made(&store).await;
    session.append(&store, 1, "a b").await.expect("stored");
    let before = store.primaries().await.expect("read");
    let server = server.restart();
    let answer = at_last(|| session.append(&store, 3, "c")).await;
    assert!(matches!(answer, Err(Error::Missing)), "{answer:?}");
    // For a session that it does not own, a node cannot read yet that the record is missing.
    let nobody = Session::new();
    unavailable(store.read(&nobody.id).await);
    let after = look(&store).await;
    assert_ne!(before, after);
    assert_eq!(store.read(&nobody.id).await.expect("answered"), None);
    store.reassert(session.record.clone(), session.batch(1, "a b c")).await.expect("re-asserted");
    assert_eq!(session.log(&store).await, "a b c");
    drop(server);
}

/// A claimant that missed the failover could depose an owner that has the only copy.
#[tokio::test]
async fn no_claim_and_no_release_on_a_primary_that_was_not_acknowledged() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    store.primaries().await.expect("read");
    let server = server.restart();
    let session = Session::new();
    at_last(|| session.make(&store)).await.expect("created");
    let heir = session.heir();
    unavailable(session.claimed_by(&heir, &store).await);
    unavailable(store.release(&session.id, session.owner.token, None, LONG).await);
    session.append(&store, 1, "a").await.expect("the owner appends");
    look(&store).await;
    session.claimed_by(&heir, &store).await.expect("claimed");
    drop(server);
}

/// The claimant read another primary, which may have a newer owner than this one.
#[tokio::test]
async fn what_one_primary_judged_is_not_done_at_the_next_also_when_that_is_acknowledged() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    let judged_by = look(&store).await[0].id;
    let server = server.restart();
    let session = Session::new();
    at_last(|| session.make(&store)).await.expect("created");
    let now = look(&store).await[0].id;
    let (id, expected, heir) = (&session.id, Expected::Token(session.owner.token), session.heir());
    unavailable(store.claim(id, expected, heir.owner, Some(judged_by), LONG).await);
    unavailable(store.release(id, session.owner.token, Some(judged_by), LONG).await);
    session.append(&store, 1, "a").await.expect("the owner is unchanged");
    store.claim(id, expected, heir.owner, Some(now), LONG).await.expect("claimed");
    drop(server);
}

/// The new primary may have lost the node's lease.
#[tokio::test]
async fn no_node_is_gone_on_a_primary_that_was_not_acknowledged() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    look(&store).await;
    let node = lease();
    store.renew(node.clone(), LONG).await.expect("renewed");
    let server = server.restart();
    let other = Session::new();
    at_last(|| other.make(&store)).await.expect("created");
    unavailable(store.presence(node.incarnation).await);
    look(&store).await;
    let presence = store.presence(node.incarnation).await.expect("read");
    assert_eq!(presence, Presence::Gone);
    drop(server);
}

/// Otherwise every request of its client would fail as unavailable until the session expires.
#[tokio::test]
async fn a_corrupt_session_is_ended_and_one_of_a_newer_layout_is_left_alone() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    let key = |session: &Session| format!("rh:{{{}}}", session.id.as_str());
    let (cut, garbled) = (Session::made(&store).await, Session::made(&store).await);
    let _: usize = server.run(&["SETRANGE", &key(&garbled), "1", "?"]).await;
    let () = server.run(&["SET", &key(&cut), "\u{1}O cut off"]).await;
    for session in [&cut, &garbled] {
        for _ in 0..2 {
            let record = store.read(&session.id).await.expect("read").expect("a tombstone");
            assert_eq!(record.status, RecordStatus::Ended);
        }
        let refused = session.append(&store, 1, "a").await;
        assert!(matches!(refused, Err(Error::Ended)), "{refused:?}");
        assert!(server.run::<i64>(&["PTTL", &key(session)]).await > 0);
    }
    let log = Session::made(&store).await;
    log.append(&store, 1, "a").await.expect("stored");
    let _: usize = server.run(&["RPUSH", &format!("{}:log", key(&log)), "short"]).await;
    let claimed = log.claimed_by(&log.heir(), &store).await;
    assert!(matches!(claimed, Err(Error::Ended)), "{claimed:?}");
    let record = store.read(&log.id).await.expect("read").expect("a tombstone");
    assert_eq!(record.status, RecordStatus::Ended);

    let newer = Session::made(&store).await;
    let _: usize = server.run(&["SETRANGE", &key(&newer), "0", "\u{3}"]).await;
    let bytes: Vec<u8> = server.run(&["GET", &key(&newer)]).await;
    unavailable(store.read(&newer.id).await);
    unavailable(newer.append(&store, 1, "a").await);
    assert_eq!(server.run::<Vec<u8>>(&["GET", &key(&newer)]).await, bytes);
}

/// `maxmemory` with `noeviction`: Redis refuses writes that need memory. The scripts of leases,
/// claims and releases are executed.
#[tokio::test]
async fn a_full_server_takes_no_entries_but_leases_claims_and_releases_go_on() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]);
    let store = open(&server.url());
    let session = Session::made(&store).await;
    session.append(&store, 1, "a b c").await.expect("stored");
    let node = lease();
    store.renew(node.clone(), LONG).await.expect("renewed");
    let () = server.run(&["CONFIG", "SET", "maxmemory", "1"]).await;

    let why = unavailable(session.append(&store, 4, "d").await);
    assert!(why.contains("OOM"), "{why}");
    unavailable(Session::new().make(&store).await);
    assert_eq!(session.log(&store).await, "a b c");
    let trim = store::Batch { floor: 3, ..session.batch(4, "") };
    store.append(trim).await.expect("a trim needs no memory");
    let again = Lease { renewal: 2, acknowledged: 1, ..node.clone() };
    assert!(store.renew(again, LONG).await.expect("renewed").was_there);
    let other = lease();
    store.renew(other.clone(), LONG).await.expect("a new node as well");
    let heir = session.heir();
    session.claimed_by(&heir, &store).await.expect("claimed");
    store.release(&heir.id, heir.owner.token, None, LONG).await.expect("released");
    let last = heir.heir();
    store.claim(&last.id, Expected::Released, last.owner, None, LONG).await.expect("claimed");
    assert_eq!(last.log(&store).await, "c");
    store.end(&last.id, last.owner.token, LONG).await.expect("ended");

    let () = server.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let session = Session::made(&store).await;
    session.append(&store, 1, "a").await.expect("taken again");
}

/// `min-replicas-to-write`: no operation is executed in part.
#[tokio::test]
async fn a_primary_that_lost_its_replicas_takes_nothing() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    let session = Session::made(&store).await;
    let () = server.run(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let why = unavailable(session.append(&store, 1, "a").await);
    assert!(why.contains("NOREPLICAS"), "{why}");
    unavailable(session.claimed_by(&session.heir(), &store).await);
    unavailable(store.renew(lease(), LONG).await);
    unavailable(store.end(&session.id, session.owner.token, LONG).await);
    let () = server.run(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    session.append(&store, 1, "a").await.expect("stored");
    assert_eq!(store.read(&session.id).await.expect("read"), Some(session.record));
}

/// The server executed a command and its answer was lost. The store retries by itself.
#[tokio::test]
async fn an_answer_that_was_lost_is_asked_for_again() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port).await;
    let store = open(&proxy.url());
    let session = Session::made(&store).await;
    for (number, word) in (1..).zip(["a", "b", "c"]) {
        proxy.cut_next_answer();
        session.append(&store, number, word).await.expect("stored");
    }
    proxy.cut_next_answer();
    let heir = session.heir();
    let claimed = session.claimed_by(&heir, &store).await.expect("claimed");
    assert_eq!(claimed.record, heir.record);
    proxy.cut_next_answer();
    store.end(&heir.id, heir.owner.token, LONG).await.expect("ended");
    assert_eq!(heir.log(&store).await, "");
}

/// An append that timed out arrives after the session has got another owner.
#[tokio::test]
async fn what_arrives_late_on_an_old_connection_changes_nothing() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port).await;
    let store = open_with(Settings { timeout_ms: 200, ..Settings::at(proxy.url()) });
    let session = Session::made(&store).await;
    session.append(&store, 1, "a").await.expect("stored");
    proxy.hold_next();
    unavailable(session.append(&store, 2, "x y").await);
    session.append_at_last(&store, 2, "b").await;
    let heir = session.heir();
    at_last(|| session.claimed_by(&heir, &store)).await.expect("claimed");
    heir.append_at_last(&store, 3, "c").await;
    let before: u64 = evalshas(&server).await;
    proxy.go_on();
    while evalshas(&server).await == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(heir.log(&store).await, "a b c");
}

/// After a failover the logs of all sessions are written again, which may take longer than a
/// lease lasts.
#[tokio::test]
async fn a_renewal_does_not_wait_for_what_else_is_written() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port).await;
    let store = open(&proxy.url());
    let session = Session::made(&store).await;
    let first = lease();
    store.renew(first.clone(), LONG).await.expect("renewed");
    proxy.hold_next();
    let renewed = async {
        // The log is being written by now, and the proxy holds it on its connection.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let next = Lease { renewal: 2, acknowledged: 1, ..first.clone() };
        let start = Instant::now();
        let renewed = store.renew(next, LONG).await;
        proxy.go_on();
        (renewed, start.elapsed())
    };
    let (appended, (renewed, took)) = tokio::join!(session.append(&store, 1, "a"), renewed);
    assert!(renewed.expect("renewed").was_there);
    assert!(took < Duration::from_millis(300), "{took:?}");
    appended.expect("stored");
}

/// The number of scripts that a server has run.
async fn evalshas(server: &Server) -> u64 {
    let info: String = server.run(&["INFO", "commandstats"]).await;
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls = line.and_then(|line| line.split(',').next()).and_then(|n| n.parse().ok());
    calls.unwrap_or(0)
}

/// The server is stopped by SIGSTOP, as on a machine that swaps.
#[tokio::test]
async fn no_operation_waits_for_a_paused_server_longer_than_the_timeout() {
    let server = Server::start(&[]);
    let store = open_with(Settings { timeout_ms: 300, ..Settings::at(server.url()) });
    let session = Session::made(&store).await;
    session.append(&store, 1, "a").await.expect("stored");
    server.pause();
    for _ in 0..3 {
        let start = Instant::now();
        unavailable(session.append(&store, 2, "b").await);
        unavailable(store.read(&session.id).await);
        unavailable(store.primaries().await);
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
    server.go_on();
    session.append_at_last(&store, 2, "b").await;
    session.append_at_last(&store, 3, "c").await;
    assert_eq!(session.log(&store).await, "a b c");
}

/// Redis, load balancers and operators close idle connections.
#[tokio::test]
async fn a_connection_that_was_closed_is_reopened_without_an_error() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    let session = Session::made(&store).await;
    for number in 1..=5 {
        let mut admin = server.connect().await;
        let () = crate::server::run(&mut admin, &["CLIENT", "KILL", "SKIPME", "yes"]).await;
        session.append(&store, number, "x").await.expect("stored");
    }
}

/// A node starts before its Redis does.
#[tokio::test]
async fn a_store_waits_for_a_server_that_is_not_there_yet() {
    let store = open_with(Settings {
        timeout_ms: 100,
        ..Settings::at(format!("redis://127.0.0.1:{}", free_port()))
    });
    let why = unavailable(Session::new().make(&store).await);
    assert!(why.contains("127.0.0.1"), "{why}");
    let paused = Server::start(&[]);
    let store = open(&paused.url());
    at_last(|| async { Session::new().make(&store).await }).await.expect("created");
}

/// Two installations share a server.
#[tokio::test]
async fn installations_with_other_prefixes_do_not_meet() {
    let one = open(&shared_url());
    let other = open_with(Settings { prefix: "other".into(), ..Settings::at(shared_url()) });
    let session = Session::made(&one).await;
    assert_eq!(other.read(&session.id).await.expect("read"), None);
    session.make(&other).await.expect("created");
    other.end(&session.id, session.owner.token, LONG).await.expect("ended");
    assert!(one.read(&session.id).await.expect("read").is_some());
}

/// The contract tests do not wait for real time.
#[tokio::test]
async fn redis_expires_keys_after_their_time_to_live() {
    let store = open(&shared_url());
    let (session, ttl) = (Session::new(), Duration::from_millis(400));
    let start = Instant::now();
    store.create(&session.id, session.record.clone(), ttl).await.expect("created");
    let node = lease();
    store.renew(node.clone(), ttl).await.expect("renewed");
    while store.read(&session.id).await.expect("read").is_some() {
        assert!(start.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(start.elapsed() >= ttl);
    while store.presence(node.incarnation).await.expect("read") != Presence::Gone {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let by = lease();
    store.renew(by.clone(), LONG).await.expect("renewed");
    let marking =
        store.mark_dead(node.incarnation, by.incarnation, &[], None, LONG).await.expect("marked");
    assert_eq!(marking, Marking::Dead);
}

/// This version cannot decode a record of a later one.
#[tokio::test]
async fn a_record_in_another_layout_is_left_alone() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    let session = Session::made(&store).await;
    let key = format!("rh:{{{}}}", session.id.as_str());
    let () = server.run(&["SETRANGE", &key, "0", "\x03"]).await;
    let held: Vec<u8> = server.run(&["GET", &key]).await;
    unavailable(session.append(&store, 1, "a").await);
    unavailable(session.make(&store).await);
    unavailable(store.read(&session.id).await);
    unavailable(session.claimed_by(&session.heir(), &store).await);
    unavailable(store.reassert(session.record.clone(), session.batch(1, "a")).await);
    let now: Vec<u8> = server.run(&["GET", &key]).await;
    assert_eq!(held, now);
}

/// An index of sessions would keep the sessions of a dead node while other sessions renew it.
#[tokio::test]
async fn a_session_writes_no_key_but_its_own_two() {
    let server = Server::start(&[]);
    let store = open(&server.url());
    let session = Session::made(&store).await;
    session.append(&store, 1, "a b").await.expect("stored");
    store
        .save(&session.id, session.owner.token, session.record.state.clone())
        .await
        .expect("saved");
    let heir = session.heir();
    session.claimed_by(&heir, &store).await.expect("claimed");
    let record = format!("rh:{{{}}}", session.id.as_str());
    let mut keys: Vec<String> = server.run(&["KEYS", "*"]).await;
    keys.sort();
    assert_eq!(keys, [record.clone(), format!("{record}:log")]);
    store.end(&heir.id, heir.owner.token, LONG).await.expect("ended");
    assert_eq!(server.run::<Vec<String>>(&["KEYS", "*"]).await, [record], "the tombstone");
}

/// Each operation is one write and one answer, for any number of sessions. The answer to a claim
/// has record and log.
#[tokio::test]
async fn an_operation_is_one_round_trip() {
    let server = Server::start(&[]);
    let proxy = Proxy::to(server.port).await;
    // Appends that are sent while one window ends and the next one begins would be two writes.
    let store = open_with(Settings { append_window_ms: 0, ..Settings::at(proxy.url()) });
    let session = Session::made(&store).await;
    let mut others = Vec::new();
    for _ in 0..200 {
        others.push(Session::made(&store).await);
    }
    proxy.writes();
    macro_rules! costs {
        ($writes:literal, $what:expr) => {
            let _ = $what.await;
            assert_eq!(proxy.writes(), $writes, stringify!($what));
        };
    }
    let token = session.owner.token;
    let state = State { version: 2, ..State::default() };
    let heir = session.heir();
    costs!(1, Session::new().make(&store));
    costs!(1, store.read(&session.id));
    costs!(1, session.append(&store, 1, "a"));
    costs!(1, join_all(others.iter().map(|other| other.append(&store, 1, "a b"))));
    costs!(1, store.save(&session.id, token, state));
    let extension = StateExtension { after: 2, version: 3, bytes: (*b"more").into() };
    costs!(1, store.extend_state(&session.id, token, extension));
    costs!(1, store.read_log(&session.id));
    costs!(1, session.claimed_by(&heir, &store));
    costs!(1, store.reassert(heir.record.clone(), heir.batch(1, "a")));
    costs!(1, store.release(&heir.id, heir.owner.token, None, LONG));
    let node = lease();
    costs!(1, store.renew(node.clone(), LONG));
    costs!(1, store.presence(node.incarnation));
    costs!(1, store.primaries());
    costs!(2, store.nodes());
    costs!(2, store.mark_dead(store::Incarnation(1), node.incarnation, &[], None, LONG));
    costs!(1, store.leave(node.incarnation, LONG));
    costs!(1, store.end(&others[0].id, others[0].owner.token, LONG));
    let ended = store.read(&others[0].id).await.expect("read").expect("a tombstone");
    assert_eq!(ended.status, RecordStatus::Ended);
}

/// An idle session keeps its record.
#[tokio::test]
async fn an_idle_session_takes_less_than_a_kilobyte() {
    const SESSIONS: usize = 1_000;
    let server = Server::start(&[]);
    let store = open(&server.url());
    let mut used = 0;
    for number in 0..SESSIONS {
        let mut session =
            Session::named(&format!("5f0c1f0e-1d7c-4a38-9a6f-{number:012x}-a1b2c3d4"));
        // Params of the length that clients with many capabilities send.
        session.record.initialize = vec![b'x'; 300].into();
        session.make(&store).await.expect("created");
        session.append(&store, 1, "entry").await.expect("stored");
        let trim = store::Batch { floor: 2, ..session.batch(2, "") };
        store.append(trim).await.expect("stored");
        let keys: Vec<String> = if number % 100 == 0 {
            server.run(&["KEYS", &format!("rh:{{{}}}*", session.id.as_str())]).await
        } else {
            Vec::new()
        };
        for key in keys {
            used += server.run::<usize>(&["MEMORY", "USAGE", &key]).await * 100;
        }
    }
    let each = used / SESSIONS;
    assert!((200..1_000).contains(&each), "{each} bytes a session");
}
