//! Attacks of a hostile server on the node and on other servers. Each attack fails with
//! protections. It succeeds without them, which shows that the attack itself works.

use backends::sandbox::Protection;
use backends::stdio::StdioSettings;
use serde_json::{Value, json};

use crate::stage::*;

/// A server that attacks the processes in its arguments, then reports which attacks succeeded.
const ATTACKER: &str = r#"
import json, os, sys

def can(attack):
    try:
        return bool(attack())
    except OSError:
        return False

def reads(pid, secret):
    return secret.encode() in open(f"/proc/{pid}/environ", "rb").read()

def writes(pid):
    forged = b'{"jsonrpc":"2.0","method":"forged"}\n'
    return os.write(os.open(f"/proc/{pid}/fd/1", os.O_WRONLY), forged)

def signals(pid, signal):
    os.kill(pid, signal)
    return True

node, guard, victim = (int(pid) for pid in sys.argv[1:4])
print(json.dumps({"jsonrpc": "2.0", "method": "report", "params": {
    "sees_node": can(lambda: os.stat(f"/proc/{node}/status")),
    "reads_node": can(lambda: reads(node, "PATH")),
    "signals_node": can(lambda: signals(node, 0)),
    "reads_victim": can(lambda: reads(victim, "of the victim")),
    "writes_for_victim": can(lambda: writes(victim)),
    "signals_guard": can(lambda: signals(guard, 18)),
    "kills_victim": can(lambda: signals(victim, 9)),
}}), flush=True)
"#;

/// Starts a victim, and an attacker with the process ids of the victim and its guard as arguments.
/// Returns the attacker's report and the next message of the victim.
async fn attack(children: &Stage, name: &str) -> (Value, Result<String, String>) {
    let scenario = scenario(name);
    let mut settings = marked(sh("read line; exec cat"), &scenario);
    settings.env.insert("API_KEY".into(), "of the victim".into());
    let mut victim = Talk::up(settings, children).await;
    let pid = loop {
        let server = carriers(&scenario).into_iter().find(|pid| is_shell(*pid));
        match server {
            Some(pid) => break pid,
            None => tokio::task::yield_now().await,
        }
    };
    let mut guard = parent_of(pid);
    while parent_of(guard) != std::process::id().cast_signed() {
        guard = parent_of(guard);
    }
    let pids = [std::process::id().cast_signed(), guard, pid].map(|pid| pid.to_string());
    let mut settings = StdioSettings::new("python3", ["-u", "-c", ATTACKER]);
    settings.args.extend(pids);
    let report = Talk::up(settings, children).await.next_text().await;
    let report: Value = serde_json::from_str(&report).unwrap();
    let _ = victim.link.sender.send(message(r#"{"jsonrpc":"2.0","method":"first"}"#));
    let _ = victim.link.sender.send(message(r#"{"jsonrpc":"2.0","method":"echo"}"#));
    let sent = match victim.next().await {
        Some(backends::LinkEvent::Message { message, .. }) => {
            Ok(String::from_utf8_lossy(message.raw()).into_owned())
        }
        other => Err(format!("{other:?}")),
    };
    (report["params"].clone(), sent)
}

fn is_shell(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sh")
}

fn outcomes(succeeds: bool) -> Value {
    json!({
        "sees_node": succeeds, "reads_node": succeeds, "signals_node": succeeds,
        "reads_victim": succeeds, "writes_for_victim": succeeds,
        "kills_victim": succeeds, "signals_guard": succeeds,
    })
}

#[tokio::test]
async fn a_server_reads_forges_and_kills_nothing_of_the_node_and_of_other_servers() {
    let (report, sent) = attack(&sandboxed(), "victim").await;
    assert_eq!(report, outcomes(false));
    assert_eq!(sent.unwrap(), r#"{"jsonrpc":"2.0","method":"echo"}"#);
}

/// As in a container whose runtime hides parts of `/proc`.
#[tokio::test]
async fn without_a_proc_of_its_own_a_server_sees_other_processes_and_reaches_none() {
    let protections = granted().without(Protection::OwnProc, "hidden parts");
    let children = with(protections);
    let (report, sent) = attack(&children, "seen-victim").await;
    let mut expected = outcomes(false);
    expected["sees_node"] = json!(true);
    assert_eq!(report, expected);
    assert_eq!(sent.unwrap(), r#"{"jsonrpc":"2.0","method":"echo"}"#);
}

#[tokio::test]
async fn without_protections_a_server_reaches_the_node_and_other_servers() {
    let (report, sent) = attack(&guarded(), "unprotected-victim").await;
    assert_eq!(report, outcomes(true));
    assert_eq!(sent.unwrap(), r#"{"jsonrpc":"2.0","method":"forged"}"#);
}

/// Becomes a process without a mark, in a session of its own, and kills its former parent.
fn escape(name: &str) -> (StdioSettings, String) {
    // No other test uses this number of seconds.
    let sleep = format!("sleep 302.{}{:02}", std::process::id(), name.len());
    let ready = format!(r#"printf '{{"jsonrpc":"2.0","method":"{name}"}}\n';"#);
    let escape = format!(r#"exec env -i setsid sh -c "kill -9 $PPID; exec {sleep}""#);
    (sh(&format!("{ready} {escape}")), sleep)
}

async fn left_by_an_escape(children: &Stage, name: &str) -> Vec<i32> {
    let (settings, sleep) = escape(name);
    let mut talk = Talk::up(settings, children).await;
    talk.next_text().await;
    tokio::time::timeout(PATIENCE, async {
        while !commands(&sleep).iter().any(|pid| is_sleep(*pid)) {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the process to escape");
    drop(talk);
    stopped(children).await;
    commands(&sleep)
}

fn is_sleep(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep")
}

#[tokio::test]
async fn a_server_that_kills_its_parent_and_detaches_leaves_nothing() {
    assert_eq!(left_by_an_escape(&sandboxed(), "escape").await, [0; 0]);
}

#[tokio::test]
async fn without_a_namespace_a_server_that_kills_its_guard_leaves_a_process() {
    let left = left_by_an_escape(&guarded(), "unprotected-escape").await;
    left.iter().for_each(|pid| kill(*pid));
    assert_eq!(left.len(), 1);
}

/// A directory in a cgroup v2 that the test may use, if the machine has one.
struct Cgroups(std::path::PathBuf);

impl Cgroups {
    fn create(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let path = fields.next()?;
            (fields.next()? == "cgroup2").then(|| path.to_owned())
        });
        let path = std::path::Path::new(&mount?).join(scenario(name));
        std::fs::create_dir(&path).ok().map(|()| Self(path))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).unwrap();
    }
}

#[tokio::test]
async fn a_cgroup_ends_what_a_server_without_a_namespace_leaves() {
    let Some(cgroups) = Cgroups::create("escape") else { return };
    backends::stdio::prepare_cgroups(&cgroups.0).unwrap();
    let children = with(unprotected().with_cgroups(&cgroups.0));
    let (settings, sleep) = escape("cgroup-escape");
    let mut talk = Talk::up(settings, &children).await;
    talk.next_text().await;
    assert_eq!(talk.down().await, "the server was killed by signal 9");
    stopped(&children).await;
    assert_eq!(commands(&sleep), [0; 0]);
    assert_eq!(
        std::fs::read_dir(&cgroups.0)
            .unwrap()
            .filter(|entry| { entry.as_ref().is_ok_and(|entry| entry.path().is_dir()) })
            .count(),
        0,
        "the server's cgroup is removed"
    );
}
