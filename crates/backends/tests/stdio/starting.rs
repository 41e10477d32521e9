//! The start of servers: clients that give up, spare servers, starts that fail.

use std::sync::Arc;
use std::time::Duration;

use backends::stdio::{Children, ChildrenSettings, StdioBackend, StdioSettings};
use backends::{Backend as _, Backends, LinkEvent};
use protocol::SessionId;
use tokio::time::{Instant, sleep, timeout};

use crate::stage::{
    PATIENCE, Stage, Talk, environment, guard, guarded, is_alive, python, sh, unprotected,
};

const ADA: [u8; 32] = [1; 32];
const BOB: [u8; 32] = [2; 32];

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":"i:1","method":"initialize","params":{"a":1}}"#;
const OTHER: &str = r#"{"jsonrpc":"2.0","id":"i:1","method":"initialize","params":{"a":2}}"#;
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"initialized"}"#;

/// Sends a notification with its process id, and answers each request once a file exists; the answer
/// has the process id and the number of requests.
fn slow(gate: &std::path::Path) -> StdioSettings {
    python(&format!(
        r#"
import json, os, sys, time
print(json.dumps({{"jsonrpc": "2.0", "method": "pid", "params": {{"a": [os.getpid()]}}}}), flush=True)
count = 0
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    while not os.path.exists({gate:?}):
        time.sleep(0.01)
    count += 1
    result = {{"a": [os.getpid(), count]}}
    print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": result}}), flush=True)
"#
    ))
}

fn backend(settings: StdioSettings, children: &Children) -> StdioBackend {
    StdioBackend::new("acme/main", settings, unprotected(), children.clone())
}

/// A link that was sent a first message.
fn talk(backend: &StdioBackend, principal: &[u8; 32], first: &str) -> Talk {
    let session = SessionId::parse("s").unwrap();
    let talk = Talk { link: backend.open_for(&session, principal) };
    talk.send(first);
    talk
}

async fn up(talk: &mut Talk) {
    assert!(matches!(talk.next().await, Some(LinkEvent::Up)));
}

/// Waits for something that happens in another task.
async fn until(mut holds: impl FnMut() -> bool) {
    let waits = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waits).await.expect("it happens in time");
}

#[tokio::test]
async fn a_start_outlives_the_client_that_gives_up_and_its_next_try_gets_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let children = guarded().children;
    let backend = backend(slow(&gate), &children);
    let mut first = talk(&backend, &ADA, INITIALIZE);
    up(&mut first).await;
    let [pid] = first.pids().await[..] else { panic!("no pid") };
    drop(first);
    // A second try gives up as well, before there is an answer.
    let mut second = talk(&backend, &ADA, INITIALIZE);
    up(&mut second).await;
    assert_eq!(second.pids().await, [pid], "it gets what the server sent before");
    drop(second);
    std::fs::write(&gate, "").unwrap();
    let mut third = talk(&backend, &ADA, INITIALIZE);
    up(&mut third).await;
    assert_eq!(third.pids().await, [pid]);
    assert_eq!(third.pids().await, [pid, 1], "the server has received one `initialize`");
    assert_eq!(children.count(), 1);
    third.send(INITIALIZED);
    third.send(r#"{"jsonrpc":"2.0","id":2,"method":"x"}"#);
    assert_eq!(third.pids().await, [pid, 2], "it is in use like any other");
    drop(third);
    children.stopped().await;
}

#[tokio::test]
async fn another_client_and_other_parameters_get_a_server_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let children = guarded().children;
    let backend = backend(slow(&gate), &children);
    let mut first = talk(&backend, &ADA, INITIALIZE);
    up(&mut first).await;
    let pid = first.pids().await;
    drop(first);
    std::fs::write(&gate, "").unwrap();
    for (principal, first) in [(&BOB, INITIALIZE), (&ADA, OTHER)] {
        let mut talk = talk(&backend, principal, first);
        up(&mut talk).await;
        assert_ne!(talk.pids().await, pid);
    }
    // A session whose client is not known gets none either.
    let unknown = Talk { link: backend.open(&SessionId::parse("s").unwrap()) };
    unknown.send(INITIALIZE);
    let mut unknown = unknown;
    up(&mut unknown).await;
    assert_ne!(unknown.pids().await, pid);
    children.close();
}

#[tokio::test]
async fn a_start_that_no_client_comes_back_for_ends() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let children = guarded().children;
    let settings = StdioSettings { start_kept_secs: 1, ..slow(&gate) };
    let mut first = talk(&backend(settings, &children), &ADA, INITIALIZE);
    up(&mut first).await;
    let [pid] = first.pids().await[..] else { panic!("no pid") };
    drop(first);
    std::fs::write(&gate, "").unwrap();
    children.stopped().await;
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn a_server_with_its_session_ends_with_it_where_that_is_set() {
    let folder = tempfile::tempdir().unwrap();
    let children = guarded().children;
    let settings = StdioSettings { start_kept_secs: 0, ..slow(&folder.path().join("gate")) };
    let mut first = talk(&backend(settings, &children), &ADA, INITIALIZE);
    up(&mut first).await;
    drop(first);
    timeout(PATIENCE, children.stopped()).await.unwrap();
}

#[tokio::test]
async fn a_server_whose_answer_arrived_ends_with_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    std::fs::write(&gate, "").unwrap();
    let children = guarded().children;
    let mut first = talk(&backend(slow(&gate), &children), &ADA, INITIALIZE);
    up(&mut first).await;
    first.pids().await;
    first.pids().await;
    drop(first);
    timeout(PATIENCE, children.stopped()).await.unwrap();
}

/// A slow server on a node that may have one.
fn only_one(folder: &tempfile::TempDir) -> StdioBackend {
    let children = Children::new(
        ChildrenSettings { children_max: 1, ..ChildrenSettings::default() },
        None,
        environment(),
    );
    backend(slow(&folder.path().join("gate")), &children)
}

#[tokio::test]
async fn a_kept_start_makes_room_for_a_client_that_waits() {
    let folder = tempfile::tempdir().unwrap();
    let backend = only_one(&folder);
    let mut first = talk(&backend, &ADA, INITIALIZE);
    up(&mut first).await;
    let pid = first.pids().await;
    drop(first);
    let mut other = talk(&backend, &BOB, INITIALIZE);
    up(&mut other).await;
    assert_ne!(other.pids().await, pid);
}

#[tokio::test]
async fn a_start_that_is_given_up_later_makes_room_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let backend = only_one(&folder);
    let mut first = talk(&backend, &ADA, INITIALIZE);
    up(&mut first).await;
    let pid = first.pids().await;
    let mut other = talk(&backend, &ADA, OTHER);
    // Its task looks for room before the first client gives up.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    drop(first);
    up(&mut other).await;
    assert_ne!(other.pids().await, pid);
}

#[tokio::test]
async fn spare_servers_wait_for_sessions_and_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    std::fs::write(&gate, "").unwrap();
    let children = guarded().children;
    let backend = backend(StdioSettings { warm: 2, ..slow(&gate) }, &children);
    backend.start_in_advance();
    until(|| children.count() == 2).await;
    let mut first = talk(&backend, &ADA, INITIALIZE);
    up(&mut first).await;
    let [pid] = first.pids().await[..] else { panic!("no pid") };
    assert_eq!(first.pids().await, [pid, 1], "it has received nothing before");
    // One is in use, and two wait again.
    until(|| children.count() == 3).await;
    crate::stage::kill(pid);
    assert!(first.down().await.contains("the server"));
    children.close();
    timeout(PATIENCE, children.stopped()).await.unwrap();
}

#[tokio::test]
async fn spare_servers_are_started_once_however_often_that_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    std::fs::write(&gate, "").unwrap();
    let children = guarded().children;
    let backend = backend(StdioSettings { warm: 1, ..slow(&gate) }, &children);
    (0..3).for_each(|_| backend.start_in_advance());
    until(|| children.count() > 0).await;
    let mut first = talk(&backend, &ADA, INITIALIZE);
    up(&mut first).await;
    first.pids().await;
    // The one in use, and the one that takes its place.
    until(|| children.count() > 1).await;
    assert_eq!(children.count(), 2);
    children.close();
}

#[tokio::test]
async fn a_backend_that_is_replaced_keeps_only_the_servers_of_its_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    std::fs::write(&gate, "").unwrap();
    let children = guarded().children;
    let warm = || StdioSettings { warm: 2, ..slow(&gate) };
    let [old, new] = [warm(), slow(&gate)].map(|settings| backend(settings, &children));
    let tenant: Arc<str> = "acme".into();
    let backends = Backends::new([(Arc::clone(&tenant), Arc::new(old.clone()) as _)]);
    backends.start_in_advance();
    until(|| children.count() == 2).await;
    let mut session = talk(&old, &ADA, INITIALIZE);
    up(&mut session).await;
    session.pids().await;
    let [pid, _] = session.pids().await[..] else { panic!("no pid") };
    until(|| children.count() == 3).await;
    backends.replace([(tenant, Arc::new(new) as _)]);
    until(|| children.count() == 1).await;
    // The session can still use its server, and gets another one if that ends.
    session.send(r#"{"jsonrpc":"2.0","id":2,"method":"x"}"#);
    assert_eq!(session.pids().await, [pid, 2]);
    drop(session);
    until(|| children.count() == 0).await;
    let mut session = talk(&old, &ADA, INITIALIZE);
    up(&mut session).await;
    session.pids().await;
    assert_eq!(children.count(), 1, "no further server was started in advance");
}

#[tokio::test]
async fn a_start_that_takes_too_long_ends_with_the_cause() {
    for explain in [false, true] {
        let children = guarded().children;
        let mut settings = sh("echo 'cannot reach the registry' >&2; exec sleep 600");
        settings.start_secs = Some(1);
        settings.explain = Some(explain);
        let mut talk = talk(&backend(settings, &children), &ADA, INITIALIZE);
        up(&mut talk).await;
        let reason = talk.down().await;
        assert!(reason.contains("did not answer `initialize` within 1 s"), "{reason}");
        assert_eq!(reason.contains("cannot reach the registry"), explain, "{reason}");
        children.stopped().await;
    }
}

#[tokio::test]
async fn a_start_that_fails_tells_its_last_lines_only_where_that_is_allowed() {
    for explain in [false, true] {
        let mut settings = sh("echo 'API_KEY is required' >&2; exit 3");
        settings.explain = Some(explain);
        let mut talk = talk(&backend(settings, &guarded().children), &ADA, INITIALIZE);
        up(&mut talk).await;
        let reason = talk.down().await;
        assert!(reason.contains("exited with status 3"), "{reason}");
        assert_eq!(reason.contains("API_KEY is required"), explain, "{reason}");
    }
}

#[tokio::test]
async fn a_missing_directory_and_a_missing_command_are_told_apart() {
    for children in [guarded().children, crate::stage::unguarded().children] {
        let mut nowhere = sh("cat");
        nowhere.cwd = Some("/no/such/directory".into());
        nowhere.explain = Some(true);
        let reason = talk(&backend(nowhere, &children), &ADA, INITIALIZE).down().await;
        assert!(reason.contains("`cwd` is /no/such/directory"), "{reason}");
        let mut missing = StdioSettings::new("no-such-program", [""; 0]);
        missing.explain = Some(true);
        let mut missing = talk(&backend(missing, &children), &ADA, INITIALIZE);
        let reason = match missing.next().await {
            Some(LinkEvent::Up) => missing.down().await,
            Some(LinkEvent::Down { reason }) => reason,
            other => panic!("{other:?}"),
        };
        assert!(reason.contains("`command` is \"no-such-program\""), "{reason}");
    }
}

#[tokio::test]
async fn a_failed_server_of_one_session_delays_no_other_session() {
    let children = guarded().children;
    let backend = backend(sh("exit 1"), &children);
    let begun = Instant::now();
    for _ in 0..8 {
        let mut talk = talk(&backend, &ADA, INITIALIZE);
        up(&mut talk).await;
        talk.down().await;
    }
    // With growing pauses it took 50 ms * (2 + 4 + … + 128), which is more than 12 s.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

/// A server sends its own level of `nice` and that of its parent.
#[tokio::test]
async fn a_server_and_its_guard_have_a_lower_priority_than_the_node() {
    let script = r#"
own=$(cut -d' ' -f19 /proc/self/stat) parent=$(cut -d' ' -f19 /proc/$PPID/stat)
echo "{\"jsonrpc\":\"2.0\",\"method\":\"$own $parent\"}"
cat"#;
    let node = rustix::process::nice(0).unwrap();
    for (guard, lower) in [(Some(guard()), 3), (None, 3), (None, 0)] {
        let settings = ChildrenSettings { children_nice: lower, ..ChildrenSettings::default() };
        let parent = if guard.is_some() { (node + i32::from(lower)).min(19) } else { node };
        let children = Children::new(settings, guard, environment());
        let mut talk = Talk::up(sh(script), &Stage::new(children, unprotected())).await;
        let own = (node + i32::from(lower)).min(19);
        let expected = format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{own} {parent}\"}}");
        assert_eq!(talk.next_text().await, expected);
    }
    assert_eq!(rustix::process::nice(0), Ok(node));
}
