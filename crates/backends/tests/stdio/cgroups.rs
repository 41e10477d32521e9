//! The directory of the cgroups of servers. These tests use a directory with files of the same names:
//! the node reads and writes them in the same way.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use backends::sandbox::Protection;
use rustix::fs::{Mode, OFlags};
use tokio::time::timeout;

use crate::stage::*;

fn directory() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("cgroup.controllers"), "cpu io memory\n").unwrap();
    fs::write(folder.path().join("cgroup.subtree_control"), "cpu\n").unwrap();
    fs::write(folder.path().join("cgroup.procs"), "").unwrap();
    folder
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn to_find_out_whether_servers_can_have_cgroups_changes_nothing() {
    let folder = directory();
    let path = folder.path();
    fs::create_dir(path.join("server-of-a-node")).unwrap();
    let before = entries(path);
    let protections = unprotected().with_cgroups(path);
    assert!(protections.grants(Protection::Cgroup), "{}", protections.refused());
    assert!(protections.has_controller("memory") && !protections.has_controller("pids"));
    assert_eq!(entries(path), before);
    assert_eq!(fs::read_to_string(path.join("cgroup.subtree_control")).unwrap(), "cpu\n");
    // A node that starts does.
    backends::stdio::prepare_cgroups(path).unwrap();
    assert!(!entries(path).contains(&"server-of-a-node".to_owned()));
    assert_eq!(fs::read_to_string(path.join("cgroup.subtree_control")).unwrap(), "+memory");
}

#[test]
fn a_directory_with_processes_or_without_controllers_is_refused() {
    let folder = directory();
    fs::write(folder.path().join("cgroup.procs"), "1\n").unwrap();
    let protections = unprotected().with_cgroups(folder.path());
    let refusal = protections.refusal(Protection::Cgroup).unwrap();
    assert!(refusal.contains("`memory` cannot be enabled: it has processes"), "{refusal}");
    let protections = unprotected().with_cgroups(Path::new("/proc"));
    let refusal = protections.refusal(Protection::Cgroup).unwrap();
    assert!(refusal.contains("no"), "{refusal}");
}

/// The file by which the kernel ends a cgroup is a pipe without a reader here, so writing to it blocks.
#[tokio::test]
async fn a_cgroup_that_is_slow_to_end_blocks_no_other_task() {
    let folder = directory();
    let children = with(unprotected().with_cgroups(folder.path()));
    let mut talk = Talk::up(sh("read line; exit 3"), &children).await;
    let all = entries(folder.path());
    let cgroup = all.iter().find(|name| name.starts_with("server-")).expect("a cgroup");
    let kill = folder.path().join(cgroup).join("cgroup.kill");
    assert!(Command::new("mkfifo").arg(&kill).status().unwrap().success());
    // With both ends open no write blocks.
    let open_both_ends =
        move || rustix::fs::open(&kill, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let (release, released) = std::sync::mpsc::channel();
    let releasing = std::thread::spawn(move || {
        let _ = released.recv_timeout(Duration::from_secs(10));
        let ends = open_both_ends();
        let _ = released.recv_timeout(PATIENCE);
        drop(ends);
    });
    talk.send(r#"{"jsonrpc":"2.0","method":"end"}"#);
    let began = Instant::now();
    assert!(timeout(Duration::from_secs(1), talk.next()).await.is_err(), "the cgroup is there");
    assert!(began.elapsed() < Duration::from_secs(8), "the thread was blocked");
    release.send(()).unwrap();
    assert_eq!(talk.down().await, "the server exited with status 3");
    drop(release);
    releasing.join().unwrap();
}
