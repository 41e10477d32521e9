//! Tests how a server is stopped after its session has ended.

use std::time::{Duration, Instant};

use backends::stdio::{Children, ChildrenSettings};

use crate::stage::*;

/// STD-04.
#[tokio::test]
async fn the_input_of_a_server_is_closed_first() {
    let folder = tempfile::tempdir().unwrap();
    for children in [guarded(), unguarded()] {
        let mut settings =
            sh("while read line; do echo \"$line\" >> heard; done; echo end >> heard");
        settings.cwd = Some(folder.path().to_owned());
        settings.stop_grace_ms = 10_000;
        let talk = Talk::up(settings, &children).await;
        talk.send(r#"{"jsonrpc":"2.0","method":"bye"}"#);
        drop(talk);
        stopped(&children).await;
        let heard = folder.path().join("heard");
        assert_eq!(
            std::fs::read_to_string(&heard).unwrap(),
            "{\"jsonrpc\":\"2.0\",\"method\":\"bye\"}\nend\n"
        );
        std::fs::remove_file(heard).unwrap();
    }
}

/// STD-04.
#[tokio::test]
async fn a_server_that_ignores_its_input_is_terminated_once_and_may_clean_up() {
    let script = r#"
import os, signal, sys, time
def stop(*_):
    with open("terms", "a") as file: file.write("term\n")
    time.sleep(0.1)
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
print('{"jsonrpc":"2.0","method":"ready"}')
while True: time.sleep(1)
"#;
    let folder = tempfile::tempdir().unwrap();
    for children in [guarded(), unguarded()] {
        let mut settings = python(script);
        settings.cwd = Some(folder.path().to_owned());
        let mut talk = Talk::up(settings, &children).await;
        talk.next_text().await;
        drop(talk);
        stopped(&children).await;
        let terms = folder.path().join("terms");
        assert_eq!(std::fs::read_to_string(&terms).unwrap(), "term\n");
        std::fs::remove_file(terms).unwrap();
    }
}

/// STD-04.
#[tokio::test]
async fn a_server_that_ignores_everything_is_killed() {
    let script = r#"trap '' TERM HUP INT; printf '{"jsonrpc":"2.0","method":"x","params":{"p":[%d]}}\n' $$; while :; do sleep 1; done"#;
    for children in [guarded(), unguarded()] {
        let mut talk = Talk::up(sh(script), &children).await;
        let pids = talk.pids().await;
        let begun = Instant::now();
        drop(talk);
        stopped(&children).await;
        assert!(begun.elapsed() >= Duration::from_millis(600), "killed in the grace period");
        all_gone(&pids).await;
    }
}

#[tokio::test]
async fn a_server_that_writes_while_it_stops_does_not_block_on_a_full_pipe() {
    let script = "import sys\nprint('{\"jsonrpc\":\"2.0\",\"method\":\"x\"}')\nsys.stdin.read()\nprint('x' * 5_000_000)\nopen('done', 'w')";
    let folder = tempfile::tempdir().unwrap();
    let children = guarded();
    let mut settings = python(script);
    settings.cwd = Some(folder.path().to_owned());
    settings.stop_grace_ms = 10_000;
    let mut talk = Talk::up(settings, &children).await;
    talk.next_text().await;
    drop(talk);
    stopped(&children).await;
    assert!(folder.path().join("done").exists());
}

#[tokio::test]
async fn the_node_runs_no_more_children_than_its_maximum() {
    let settings = ChildrenSettings { children_max: 2, ..ChildrenSettings::default() };
    let children = Children::new(settings, Some(guard()), std::env::vars_os());
    let children = Stage::new(children, unprotected());
    let first = Talk::up(sh("exec cat"), &children).await;
    let _second = Talk::up(sh("exec cat"), &children).await;
    let mut third = Talk::open(sh("exec cat"), &children);
    assert!(third.down().await.contains("maximum number of servers"));
    drop(first);
    while children.children.count() > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Talk::up(sh("exec cat"), &children).await;
}
