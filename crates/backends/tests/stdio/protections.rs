//! Each protection of a server: an action fails with the protection, and succeeds without it.

use std::collections::BTreeMap;
use std::net::TcpListener;

use backends::LinkEvent;
use backends::guard::Guard;
use backends::sandbox::{Network, Protection, Protections};
use backends::stdio::{RunAs, StdioSettings};

use crate::stage::*;

/// A user id without an account on any machine.
const STRANGER: u32 = 61_234;

/// The Python that every user may run.
const PYTHON: &str = "/usr/bin/python3";

/// Runs a script. Returns whether its `check()` returned true; an `OSError` counts as false.
async fn holds(mut settings: StdioSettings, script: &str, protections: Protections) -> bool {
    let script = format!(
        "import os, sys\n{script}\ntry:\n    done = bool(check())\nexcept OSError:\n    done = False\n\
         print('{{\"jsonrpc\":\"2.0\",\"method\":\"%s\"}}' % done, flush=True)\n"
    );
    settings.command = PYTHON.into();
    settings.args = vec!["-c".into(), script];
    let answer = Talk::up(settings, &with(protections)).await.next_text().await;
    answer.contains("True")
}

fn settings() -> StdioSettings {
    StdioSettings::new("", [""; 0])
}

/// The results of a script with this protection and without it.
async fn with_and_without(
    protection: Protection,
    settings: StdioSettings,
    script: &str,
) -> (bool, bool) {
    let granted = granted();
    assert!(granted.grants(protection), "refused: {}", granted.refused());
    let without = granted.clone().without(protection, "not wanted");
    (holds(settings.clone(), script, granted).await, holds(settings, script, without).await)
}

#[tokio::test]
async fn a_server_in_an_empty_network_reaches_only_its_own_loopback() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connects = format!(
        "import socket\ndef check():\n    socket.create_connection(('127.0.0.1', {port}), 5)\n    return True"
    );
    let settings = StdioSettings { network: Network::None, ..settings() };
    let reached = with_and_without(Protection::Network, settings.clone(), &connects).await;
    assert_eq!(reached, (false, true));
    let own = "import socket\ndef check():\n    server = socket.create_server(('127.0.0.1', 0))\n    \
               socket.create_connection(server.getsockname(), 5)\n    return True";
    assert!(holds(settings, own, granted()).await, "loopback is up");
}

#[tokio::test]
async fn a_server_writes_only_below_the_listed_paths() {
    // Not in the folder of temporary files, which is always writable.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let listed = folder.path().join("listed");
    std::fs::create_dir(&listed).unwrap();
    let writes = |path: &std::path::Path| {
        format!("def check():\n    open({path:?}, 'a').write('x')\n    return True")
    };
    let settings = StdioSettings { write_paths: vec![listed.clone()], ..settings() };
    let outside = writes(&folder.path().join("outside"));
    assert_eq!(
        with_and_without(Protection::WriteList, settings.clone(), &outside).await,
        (false, true)
    );
    assert!(holds(settings.clone(), &writes(&listed.join("inside")), granted()).await);
    let temporary = "import tempfile\ndef check():\n    return tempfile.TemporaryFile()";
    assert!(holds(settings.clone(), temporary, granted()).await);
    // A server may have another folder of temporary files than the node.
    let own = folder.path().join("own");
    std::fs::create_dir(&own).unwrap();
    let env = BTreeMap::from([("TMPDIR".to_owned(), own.display().to_string())]).into();
    let settings = StdioSettings { env, ..settings };
    assert!(holds(settings.clone(), &writes(&own.join("inside")), granted()).await);
    let of_node = writes(&std::env::temp_dir().join(format!("of-node-{}", std::process::id())));
    assert!(!holds(settings, &of_node, granted()).await, "the node's folder");
}

/// The system call `truncate` opens nothing, so it needs a right of its own.
#[tokio::test]
async fn a_server_empties_no_file_outside_of_the_listed_paths() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = folder.path().join("outside");
    std::fs::write(&file, "text").unwrap();
    let empties = format!("def check():\n    os.truncate({file:?}, 0)\n    return True");
    let settings = StdioSettings { write_paths: vec!["/srv".into()], ..settings() };
    let protections = granted();
    let refused = protections.grants(Protection::Truncation);
    assert_eq!(holds(settings, &empties, protections).await, !refused);
}

#[tokio::test]
async fn a_server_cannot_trace_mount_or_use_the_keys_of_the_kernel() {
    // `PTRACE_TRACEME` is an example of the refused calls. It needs no privilege.
    let traces =
        "import ctypes\ndef check():\n    return ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0";
    let outcome = with_and_without(Protection::CallFilter, settings(), traces).await;
    assert_eq!(outcome, (false, true));
}

#[tokio::test]
async fn a_server_may_still_make_namespaces_for_its_own_children() {
    let unshares =
        "import ctypes\ndef check():\n    return ctypes.CDLL(None).unshare(0x10000000) == 0";
    assert!(holds(settings(), unshares, granted()).await);
}

#[tokio::test]
async fn a_server_cannot_use_up_the_namespaces_of_other_servers() {
    // Each child creates one namespace, and reports the result through a pipe.
    let holds_many = "import ctypes, time\ndef check():\n    unshare = ctypes.CDLL(None).unshare\n    \
         got = 0\n    for _ in range(100):\n        told, tells = os.pipe()\n        \
         if os.fork() == 0:\n            os.write(tells, b'y' if unshare(0x10000000) == 0 else b'n')\n            \
         time.sleep(600)\n        got += os.read(told, 1) == b'y'\n        os.close(told); os.close(tells)\n    \
         return got > 64";
    let bounded = with_and_without(Protection::OwnProc, settings(), holds_many).await;
    assert_eq!(bounded, (false, true));
}

#[tokio::test]
async fn a_server_has_shared_memory_of_its_own() {
    let outside = std::fs::read_link("/proc/self/ns/ipc").unwrap();
    let shares =
        format!("def check():\n    return os.readlink('/proc/self/ns/ipc') == {outside:?}");
    let shared = with_and_without(Protection::PidNamespace, settings(), &shares).await;
    assert_eq!(shared, (false, true));
}

#[tokio::test]
async fn a_server_has_no_capabilities_and_gets_none() {
    let lines = |wanted: &str| {
        format!("def check():\n    return {wanted:?} in open('/proc/self/status').read()")
    };
    let none = lines("CapEff:\t0000000000000000");
    assert!(holds(settings(), &none, granted()).await);
    let unbounded = lines("CapBnd:\t0000000000000000");
    let bounded = with_and_without(Protection::NoCapabilities, settings(), &unbounded).await;
    assert_eq!(bounded, (true, false));
    let no_new = lines("NoNewPrivs:\t1");
    assert!(holds(settings(), &no_new, granted()).await);
}

#[test]
fn namespaces_in_which_a_server_would_keep_its_capabilities_are_not_granted() {
    let guard = Guard { args: vec!["keeps-capabilities".into()], ..guard() };
    let protections = Protections::probe(Some(&guard), None);
    let refused = protections.refusal(Protection::PidNamespace);
    assert_eq!(refused, Some("a server would keep its capabilities in the namespaces"));
    assert!(!protections.grants(Protection::OwnProc) && !protections.isolates());
    assert!(protections.grants(Protection::CallFilter), "{}", protections.refused());
}

#[tokio::test]
async fn a_server_cannot_take_its_proc_away() {
    // The `/proc` of the node is below it.
    let unmounts = "import ctypes\ndef check():\n    \
                    return ctypes.CDLL(None).umount2(b'/proc', 2) == 0";
    let granted = granted().without(Protection::CallFilter, "it would refuse the call as well");
    assert!(!holds(settings(), unmounts, granted.clone()).await);
    // This also fails in new user and mount namespaces, where the server has all capabilities.
    let in_own = "import ctypes\ndef check():\n    libc = ctypes.CDLL(None)\n    \
                  assert libc.unshare(0x10020000) == 0\n    return libc.umount2(b'/proc', 2) == 0";
    assert!(!holds(settings(), in_own, granted).await);
}

/// Only root may start a process as another user.
fn as_stranger() -> Option<StdioSettings> {
    let run_as = RunAs { uid: STRANGER, gid: STRANGER, name: None, home: None };
    rustix::process::geteuid().is_root().then(|| StdioSettings {
        run_as: Some(run_as),
        cwd: Some("/".into()),
        ..settings()
    })
}

#[tokio::test]
async fn a_server_has_the_rights_of_its_user_and_no_others() {
    let Some(settings) = as_stranger() else { return };
    // A group of the node, which the thread that starts the server inherits from this one.
    rustix::thread::set_thread_groups(&[rustix::process::Gid::from_raw(STRANGER + 1)]).unwrap();
    let ids = [STRANGER; 4].map(|id| id.to_string()).join("\t");
    let is_stranger = format!(
        "def check():\n    lines = open('/proc/self/status').read().splitlines()\n    \
         wanted = ['Uid:\t{ids}', 'Gid:\t{ids}'] + [f'Cap{{set}}:\t{{0:016x}}' for set in ('Inh', 'Prm', 'Eff', 'Amb')]\n    \
         return os.getgroups() == [] and all(line in lines for line in wanted)"
    );
    let granted = granted_to(settings.run_as.as_ref());
    assert!(holds(settings.clone(), &is_stranger, granted).await);
    assert!(holds(settings, &is_stranger, unprotected()).await);
}

/// To the kernel the largest number means that user and group do not change.
#[tokio::test]
async fn a_server_of_no_user_does_not_start() {
    let Some(settings) = as_stranger() else { return };
    for (uid, gid) in [(u32::MAX, STRANGER), (STRANGER, u32::MAX)] {
        let run_as = RunAs { uid, gid, name: None, home: None };
        let probed = Protections::probe(Some(&guard()), Some(&run_as));
        assert!(probed.refused().contains("the number of no user"), "{}", probed.refused());
        let mut settings = StdioSettings { run_as: Some(run_as), ..settings.clone() };
        (settings.command, settings.explain) = ("/bin/cat".into(), Some(true));
        let reason = Talk::up(settings, &with(unprotected())).await.down().await;
        assert!(reason.contains("the number of no user"), "{reason}");
    }
}

/// After a fork, the first write to each page that the node has written before is a fault of the
/// processor. No other test may fork beside this one: each has a process of its own under nextest.
#[tokio::test]
async fn the_start_of_a_server_with_a_user_does_not_copy_the_pages_of_the_node() {
    let Some(settings) = as_stranger() else { return };
    let stage = with(unprotected());
    // In pieces that are written at once, so that the kernel takes no larger pages for it.
    let piece = || vec![1; 32 << 10];
    let mut memory: Vec<Vec<u8>> = std::iter::repeat_with(piece).take(1_000).collect();
    let answers = StdioSettings {
        command: "/bin/sh".into(),
        args: vec!["-c".into(), "echo '{\"jsonrpc\":\"2.0\",\"method\":\"a\"}'; cat".into()],
        ..settings
    };
    let mut talk = Talk::up(answers, &stage).await;
    assert!(talk.next_text().await.contains("method"));
    let before = faults();
    memory.iter_mut().flatten().step_by(4 << 10).for_each(|byte| *byte = 2);
    let more = faults() - before;
    assert!(more < 100, "{more} faults in 8000 pages");
}

/// The faults of this thread that needed no disk.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The name of the thread, in parentheses, may have blanks.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_server_needs_a_directory_that_its_user_can_reach() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(settings) = as_stranger() else { return };
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let starts = async |cwd: &std::path::Path| {
        for protections in [unprotected(), granted_to(settings.run_as.as_ref())] {
            let mut settings = StdioSettings { cwd: Some(cwd.into()), ..settings.clone() };
            settings.command = "/bin/sh".into();
            settings.args = vec![
                "-c".into(),
                r#"echo "{\"jsonrpc\":\"2.0\",\"method\":\"$PWD\"}"; cat"#.into(),
            ];
            settings.explain = Some(true);
            let mut talk = Talk::up(settings, &with(protections)).await;
            match talk.next().await {
                Some(LinkEvent::Message { message, .. }) => {
                    let text = String::from_utf8(message.raw().to_vec()).unwrap();
                    assert!(text.contains(inner.to_str().unwrap()), "{text}");
                }
                Some(LinkEvent::Down { reason }) => return Err(reason),
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    };
    let missing = starts(&inner.join("missing")).await.unwrap_err();
    assert!(missing.contains("the working directory of the server does not exist"), "{missing}");
    let mode = |mode| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode));
    mode(0o700).unwrap();
    let refused = starts(&inner).await.unwrap_err();
    assert!(refused.contains("Permission denied"), "{refused}");
    mode(0o755).unwrap();
    assert_eq!(starts(&inner).await, Ok(()));
    // A relative path begins at the directory of the node.
    let up =
        std::env::current_dir().unwrap().components().skip(1).map(|_| "..").collect::<Vec<_>>();
    assert_eq!(
        starts(&std::path::Path::new(&up.join("/")).join(inner.strip_prefix("/").unwrap())).await,
        Ok(())
    );
}

#[tokio::test]
async fn a_server_starts_no_more_processes_than_its_maximum() {
    let Some(mut settings) = as_stranger() else { return };
    settings.processes_max = 20;
    let forks = "import time\ndef check():\n    for _ in range(30):\n        \
                 if os.fork() == 0: time.sleep(600)\n    return True";
    let granted = granted_to(settings.run_as.as_ref());
    assert!(granted.grants(Protection::ProcessesMax), "refused: {}", granted.refused());
    assert!(!holds(settings.clone(), forks, granted.clone()).await);
    assert!(!holds(settings.clone(), forks, granted.clone()).await);
    settings.processes_max = 60;
    assert!(holds(settings, forks, granted).await);
}
