//! No descendant of a server outlives its session, the server or the node.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::stage::*;

const SLEEPS: &str = "\nimport time\ntime.sleep(600)\n";

#[tokio::test]
async fn every_descendant_ends_with_the_session() {
    let children = guarded();
    let mut talk = Talk::up(python(&format!("{FAMILY}{SLEEPS}")), &children).await;
    let pids = talk.pids().await;
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    drop(talk);
    stopped(&children).await;
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "ended before the child counts as stopped");
}

#[tokio::test]
async fn every_descendant_ends_with_the_server() {
    let children = guarded();
    let mut talk = Talk::up(python(FAMILY), &children).await;
    let pids = talk.pids().await;
    assert_eq!(talk.down().await, "the server exited with status 0");
    assert!(!pids.iter().any(|pid| is_alive(*pid)));
}

#[tokio::test]
async fn every_descendant_ends_when_the_node_is_killed() {
    let mut node = Command::new(env!("CARGO_BIN_EXE_backends-fixture"))
        .args(["node", "python3", "-c", &format!("{FAMILY}{SLEEPS}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(node.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let mut pids = pids_in(&line);
    pids.push(parent_of(pids[0]));
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    node.kill().unwrap();
    node.wait().unwrap();
    all_gone(&pids).await;
}

#[tokio::test]
async fn every_descendant_ends_when_the_guard_is_killed() {
    let children = guarded();
    let mut talk = Talk::up(python(&format!("{FAMILY}{SLEEPS}")), &children).await;
    let pids = talk.pids().await;
    kill(parent_of(pids[0]));
    assert_eq!(talk.down().await, "the server was killed by signal 9");
    all_gone(&pids).await;
    stopped(&children).await;
}

#[tokio::test]
async fn a_guard_passes_sigterm_on_to_its_server() {
    let children = guarded();
    let mut talk = Talk::up(python(&format!("{FAMILY}{SLEEPS}")), &children).await;
    let pids = talk.pids().await;
    kill_process(Pid::from_raw(parent_of(pids[0])).unwrap(), Signal::TERM).unwrap();
    assert_eq!(talk.down().await, "the server exited with status 143 (signal 15)");
    assert!(!pids.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn a_guard_whose_parent_has_died_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let guard = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backends-fixture"));
        command.arg("guard").args(args).arg(&started).stderr(Stdio::null());
        command.status().unwrap().code()
    };
    // The argument names process 1 as the parent, as if the parent had died.
    assert_eq!(guard(&["--parent=1", "--", "touch"]), Some(125));
    assert_eq!(guard(&["--", "touch"]), Some(125));
    assert_eq!(guard(&["--parent=1", "--what=1", "--", "touch"]), Some(125));
    assert_eq!(guard(&["--role=init", "--parent=1", "--", "touch"]), Some(125));
    assert!(!started.exists());
}

#[tokio::test]
async fn without_a_guard_the_group_ends_with_the_session_and_with_the_server() {
    let script =
        r#"sleep 600 & printf '{"jsonrpc":"2.0","method":"x","params":{"p":[%d,%d]}}\n' $$ $!;"#;
    let children = unguarded();
    let mut talk = Talk::up(sh(&format!("{script} wait")), &children).await;
    let pids = talk.pids().await;
    drop(talk);
    stopped(&children).await;
    all_gone(&pids).await;

    let mut talk = Talk::up(sh(script), &children).await;
    let pids = talk.pids().await;
    assert_eq!(talk.down().await, "the server exited with status 0");
    all_gone(&pids).await;
}

async fn open_and_drop_at_once(children: &Stage, scenario: &str) {
    for delay in 0..60_u64 {
        let settings = marked(sh("sleep 600 & setsid sleep 600 & wait"), scenario);
        let talk = Talk::open(settings, children);
        tokio::time::sleep(Duration::from_micros(delay * 100)).await;
        drop(talk);
    }
    stopped(children).await;
}

#[tokio::test]
async fn a_start_that_is_cancelled_at_once_leaves_nothing() {
    for children in [guarded(), sandboxed()] {
        let scenario = scenario("cancelled");
        open_and_drop_at_once(&children, &scenario).await;
        assert_eq!(carriers(&scenario), [0; 0]);
    }
}

#[test]
fn a_runtime_that_is_dropped_leaves_nothing() {
    let children = guarded();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (talk, pids) = runtime.block_on(async {
        let mut talk = Talk::up(python(&format!("{FAMILY}{SLEEPS}")), &children).await;
        let pids = talk.pids().await;
        (talk, pids)
    });
    drop(runtime);
    drop(talk);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(stopped(&children));
    assert!(!pids.iter().any(|pid| is_alive(*pid)));
}

#[tokio::test]
async fn many_children_that_die_leave_no_zombie() {
    let children = guarded();
    for _ in 0..20 {
        let mut talk = Talk::up(sh("exit 0"), &children).await;
        while talk.next().await.is_some() {}
    }
    stopped(&children).await;
    let own = std::process::id() as i32;
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let zombie = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((_, rest)) = stat.rsplit_once(')') else { return false };
        let mut fields = rest.split_ascii_whitespace();
        fields.next() == Some("Z") && fields.next() == Some(&own.to_string())
    };
    // Other tests of this process may have a zombie for a short time. Every zombie is reaped.
    let zombies: Vec<i32> = pids.filter(zombie).collect();
    tokio::time::timeout(PATIENCE, async {
        while zombies.iter().any(zombie) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("every child to be reaped");
}
