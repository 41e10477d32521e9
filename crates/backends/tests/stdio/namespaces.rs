//! No descendant of a server in a PID namespace outlives its session, the server, the guard or the
//! node.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::*;

const SLEEPS: &str = "\nimport time\ntime.sleep(600)\n";

/// A server with two descendants, one of which has left the group and ignores signals, and the
/// four processes of it with the init.
async fn family(children: &Stage, scenario: &str, then: &str) -> Talk {
    let script = format!("{FAMILY}{then}");
    let mut talk = Talk::up(marked(python(&script), scenario), children).await;
    let inner = talk.pids().await;
    assert!(inner[0] < 10, "the server sees numbers of its own namespace: {inner:?}");
    talk
}

#[tokio::test]
async fn every_descendant_in_a_namespace_ends_with_the_session() {
    let (children, scenario) = (sandboxed(), scenario("session"));
    let talk = family(&children, &scenario, SLEEPS).await;
    assert!(carriers(&scenario).len() >= 3);
    drop(talk);
    stopped(&children).await;
    assert_eq!(carriers(&scenario), [0; 0], "ended before the child counts as stopped");
}

#[tokio::test]
async fn every_descendant_in_a_namespace_ends_with_the_server() {
    let (children, scenario) = (sandboxed(), scenario("server"));
    let mut talk = family(&children, &scenario, "").await;
    assert_eq!(talk.down().await, "the server exited with status 0");
    assert_eq!(carriers(&scenario), [0; 0]);
}

#[tokio::test]
async fn every_descendant_in_a_namespace_ends_when_its_guard_or_its_init_is_killed() {
    let children = sandboxed();
    for (generations, reason) in [
        (2, "the server was killed by signal 9"),
        (1, "the server exited with status 137 (signal 9)"),
    ] {
        let scenario = scenario(&format!("killed-{generations}"));
        let mut talk = family(&children, &scenario, SLEEPS).await;
        let server = commands_of_server(&scenario);
        let ancestor = (0..generations).fold(server, |pid, _| parent_of(pid));
        kill(ancestor);
        assert_eq!(talk.down().await, reason);
        all_gone(&carriers(&scenario)).await;
        stopped(&children).await;
    }
}

/// The server: the process that carries the mark and is the child of an init.
fn commands_of_server(scenario: &str) -> i32 {
    let marked = carriers(scenario);
    let is_init = |pid: i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim()
            == "mcp-init"
    };
    *marked.iter().find(|pid| is_init(parent_of(**pid))).expect("a server below an init")
}

#[tokio::test]
async fn a_guard_passes_sigterm_on_into_the_namespace() {
    let (children, scenario) = (sandboxed(), scenario("term"));
    let mut talk = family(&children, &scenario, SLEEPS).await;
    let guard = parent_of(parent_of(commands_of_server(&scenario)));
    kill_process(Pid::from_raw(guard).unwrap(), Signal::TERM).unwrap();
    assert_eq!(talk.down().await, "the server exited with status 143 (signal 15)");
    assert_eq!(carriers(&scenario), [0; 0]);
}

#[test]
fn a_guard_that_is_hung_up_ends_its_namespace_at_once() {
    let scenario = scenario("hung-up");
    let mut guard = Command::new(env!("CARGO_BIN_EXE_backends-fixture"))
        .args(["guard", &format!("--parent={}", std::process::id()), "--namespaces=1", "--proc=1"])
        .args(["--", "sh", "-c", "trap '' TERM HUP; echo up; sleep 600 & wait; wait"])
        .env(SCENARIO, &scenario)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(guard.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let begun = Instant::now();
    kill_process(Pid::from_child(&guard), Signal::HUP).unwrap();
    assert_eq!(guard.wait().unwrap().code(), Some(129));
    // A guard that cannot kill its child gives up after five seconds.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(carriers(&scenario), [0; 0]);
}

#[tokio::test]
async fn every_descendant_in_a_namespace_ends_when_the_node_is_killed() {
    let scenario = scenario("node");
    let mut node = Command::new(env!("CARGO_BIN_EXE_backends-fixture"))
        .args(["sandboxed-node", "env", &format!("{SCENARIO}={scenario}")])
        .args(["python3", "-c", &format!("{FAMILY}{SLEEPS}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(node.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let server = commands_of_server(&scenario);
    let mut pids = carriers(&scenario);
    pids.extend([parent_of(server), parent_of(parent_of(server))]);
    assert!(pids.len() >= 5 && pids.iter().all(|pid| is_alive(*pid)), "{pids:?}");
    node.kill().unwrap();
    node.wait().unwrap();
    all_gone(&pids).await;
}
