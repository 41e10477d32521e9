//! Helpers of the tests: links to small scripts, and checks of processes.

use std::ffi::OsString;
use std::time::Duration;

use backends::guard::Guard;
use backends::sandbox::Protections;
use backends::stdio::{Children, ChildrenSettings, RunAs, StdioBackend, StdioSettings};
use backends::{Backend as _, Link, LinkEvent};
use bytes::Bytes;
use protocol::{Message, SessionId};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

/// A timeout that no passing test reaches.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The fixture as a guard.
pub(crate) fn guard() -> Guard {
    Guard { program: env!("CARGO_BIN_EXE_backends-fixture").into(), args: vec!["guard".into()] }
}

pub(crate) fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().chain([("SECRET".into(), "of the node".into())]).collect()
}

/// A machine that refuses every protection.
pub(crate) fn unprotected() -> Protections {
    Protections::none("not wanted")
}

/// Each protection that this machine grants.
pub(crate) fn granted() -> Protections {
    granted_to(None)
}

pub(crate) fn granted_to(user: Option<&RunAs>) -> Protections {
    let protections = Protections::probe(Some(&guard()), user);
    assert!(protections.isolates(), "refused: {}", protections.refused());
    protections
}

/// The children of a node, and the protections of each of them.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) children: Children,
    protections: Protections,
}

impl Stage {
    pub(crate) fn new(children: Children, protections: Protections) -> Self {
        Self { children, protections }
    }
}

pub(crate) fn with(protections: Protections) -> Stage {
    let settings = ChildrenSettings::default();
    Stage::new(Children::new(settings, Some(guard()), environment()), protections)
}

pub(crate) fn sandboxed() -> Stage {
    with(granted())
}

pub(crate) fn guarded() -> Stage {
    with(unprotected())
}

pub(crate) fn unguarded() -> Stage {
    let children = Children::new(ChildrenSettings::default(), None, environment());
    Stage::new(children, unprotected())
}

/// A shell script with a short grace period.
pub(crate) fn sh(script: &str) -> StdioSettings {
    let mut settings = StdioSettings::new("sh", ["-c", script]);
    settings.stop_grace_ms = 300;
    settings
}

pub(crate) fn python(script: &str) -> StdioSettings {
    let mut settings = StdioSettings::new("python3", ["-u", "-c", script]);
    settings.stop_grace_ms = 300;
    settings
}

pub(crate) struct Talk {
    pub(crate) link: Link,
}

impl Talk {
    pub(crate) fn open(settings: StdioSettings, stage: &Stage) -> Self {
        let Stage { children, protections } = stage.clone();
        let backend = StdioBackend::new("test", settings, protections, children);
        Self { link: backend.open(&SessionId::parse("s").unwrap()) }
    }

    pub(crate) async fn up(settings: StdioSettings, stage: &Stage) -> Self {
        let mut talk = Self::open(settings, stage);
        assert!(matches!(talk.next().await, Some(LinkEvent::Up)));
        talk
    }

    pub(crate) async fn next(&mut self) -> Option<LinkEvent> {
        timeout(PATIENCE, self.link.events.next()).await.expect("an event in time")
    }

    /// The next message of the server.
    pub(crate) async fn next_text(&mut self) -> String {
        match self.next().await {
            Some(LinkEvent::Message { message, about: None }) => {
                String::from_utf8(message.raw().to_vec()).unwrap()
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    /// The reason of the link's `Down`, which must be the next event.
    pub(crate) async fn down(&mut self) -> String {
        match self.next().await {
            Some(LinkEvent::Down { reason }) => {
                assert!(self.next().await.is_none());
                reason
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    pub(crate) fn send(&self, text: &str) {
        self.link.sender.send(message(text)).unwrap();
    }

    /// The process ids that a script sends.
    pub(crate) async fn pids(&mut self) -> Vec<i32> {
        pids_in(&self.next_text().await)
    }
}

pub(crate) fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

/// The numbers in `[…]`.
pub(crate) fn pids_in(text: &str) -> Vec<i32> {
    let (_, list) = text.split_once('[').expect("a list");
    let (list, _) = list.split_once(']').expect("its end");
    list.split(',').map(|pid| pid.trim().parse().expect("a number")).collect()
}

/// Whether the process runs. `false` for a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// Returns when none of them runs any more.
pub(crate) async fn all_gone(pids: &[i32]) {
    let gone = async {
        while pids.iter().any(|pid| is_alive(*pid)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, gone).await.expect("every process to end");
}

/// Returns when the node has no children left.
pub(crate) async fn stopped(stage: &Stage) {
    timeout(PATIENCE, stage.children.stopped()).await.expect("every child to end");
}

/// A script that sends its process id and those of a child and of a grandchild that has left the
/// group and the session and ignores `SIGTERM` and `SIGHUP`.
pub(crate) const FAMILY: &str = r#"
import os, signal, subprocess, sys, json
escape = "import os, signal, time; os.setsid(); " \
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN); " \
    "print(os.getpid(), flush=True); time.sleep(600)"
middle = "import subprocess, sys, time, os; " \
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE); " \
    "print(os.getpid(), child.stdout.readline().decode().strip(), flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, '-c', middle, escape], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
pids = [os.getpid()] + [int(pid) for pid in child.stdout.readline().split()]
print(json.dumps({"jsonrpc": "2.0", "method": "pids", "params": {"pids": pids}}), flush=True)
"#;

/// The variable that marks the processes of one test.
pub(crate) const SCENARIO: &str = "SCENARIO";

/// A value that no other test uses.
pub(crate) fn scenario(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Settings whose processes carry a mark.
pub(crate) fn marked(mut settings: StdioSettings, scenario: &str) -> StdioSettings {
    settings.env.insert(SCENARIO.into(), scenario.into());
    settings
}

/// The processes that carry a mark. It stays readable from outside of namespaces.
pub(crate) fn carriers(scenario: &str) -> Vec<i32> {
    let variable = format!("{SCENARIO}={scenario}").into_bytes();
    every_pid(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|found| found == variable)
    })
}

/// The processes whose command line holds these words.
pub(crate) fn commands(words: &str) -> Vec<i32> {
    every_pid(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(words)
    })
}

fn every_pid(wanted: impl Fn(i32) -> bool) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| wanted(*pid)).collect()
}

pub(crate) fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

pub(crate) fn parent_of(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}
