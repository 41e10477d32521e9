//! Helpers of the tests: links to small scripts, and checks of processes.

use std::ffi::OsString;
use std::time::Duration;

use backends::guard::Guard;
use backends::stdio::{Children, ChildrenSettings, StdioBackend, StdioSettings};
use backends::{Backend as _, Link, LinkEvent};
use bytes::Bytes;
use protocol::{Message, SessionId};
use tokio::time::timeout;

/// A timeout that no passing test reaches.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The fixture as a guard.
pub(crate) fn guard() -> Guard {
    Guard { program: env!("CARGO_BIN_EXE_backends-fixture").into(), args: vec!["guard".into()] }
}

fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().chain([("SECRET".into(), "of the node".into())]).collect()
}

pub(crate) fn guarded() -> Children {
    Children::new(ChildrenSettings::default(), Some(guard()), environment())
}

pub(crate) fn unguarded() -> Children {
    Children::new(ChildrenSettings::default(), None, environment())
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
    pub(crate) fn open(settings: StdioSettings, children: &Children) -> Self {
        let backend = StdioBackend::new("test", settings, children.clone());
        Self { link: backend.open(&SessionId::parse("s").unwrap()) }
    }

    pub(crate) async fn up(settings: StdioSettings, children: &Children) -> Self {
        let mut talk = Self::open(settings, children);
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
pub(crate) async fn stopped(children: &Children) {
    timeout(PATIENCE, children.stopped()).await.expect("every child to end");
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
