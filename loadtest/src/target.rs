//! The server that is measured, and its start: one of ours, a peer, or any server by URL.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::mcp::{Endpoint, Session, Tool};
use crate::process::Processes;
use crate::wire::Wire;

/// The longest time for a server to start.
const START: Duration = Duration::from_secs(60);
/// The longest time for a server to stop. Then it is killed.
const STOP: Duration = Duration::from_secs(15);
/// How long a server has to end because its standard input is closed.
const END_BY_INPUT: Duration = Duration::from_millis(300);

/// A running server.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// All endpoints. A load without affinity uses all of them.
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) processes: Processes,
    /// The processes of its Redis, if it has one.
    pub(crate) stores: Processes,
    /// Whether the server implements HTTP without MCP, and echoes every POST.
    pub(crate) is_bare: bool,
    pub(crate) echo: Tool,
    /// The tool that reports progress.
    pub(crate) counts: Option<Counts>,
    /// Another tenant of the same server.
    pub(crate) neighbour: Option<Box<Target>>,
    /// The file `cluster.json` of a local cluster. Its nodes may be killed.
    pub(crate) cluster: Option<PathBuf>,
}

/// A tool that reports progress: its name, and the names of its arguments for the number of
/// reports and for the interval between them, in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    pub(crate) name: String,
    pub(crate) times: String,
    pub(crate) interval_ms: String,
}

impl Target {
    /// Opens a session. A server without sessions gets a placeholder.
    pub(crate) async fn session(
        &self,
        endpoint: &Endpoint,
        wire: &mut Wire,
    ) -> anyhow::Result<Session> {
        if self.is_bare {
            return Ok(Session::none(endpoint));
        }
        Session::open(endpoint, wire).await
    }

    /// A call of the progress tool with these arguments.
    pub(crate) fn count(&self, times: u64, interval_ms: u64) -> anyhow::Result<Tool> {
        let counts =
            self.counts.as_ref().context("the server has no tool that reports progress")?;
        let Counts { name, times: times_key, interval_ms: interval_key } = counts;
        let arguments = format!(r#"{{"{times_key}":{times},"{interval_key}":{interval_ms}}}"#);
        Ok(Tool { name: name.clone(), arguments })
    }
}

/// A server that was started for a measurement. It is stopped when this value is dropped.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) target: Target,
    process: Child,
}

impl Drop for Started {
    fn drop(&mut self) {
        // Our servers remove their files and end when their standard input closes. A peer needs the signal.
        drop(self.process.stdin.take());
        self.wait(END_BY_INPUT);
        self.signal(rustix::process::Signal::TERM);
        self.wait(STOP);
        // Kills the remaining processes of its process group, too.
        self.signal(rustix::process::Signal::KILL);
        let _status = self.process.wait();
    }
}

impl Started {
    /// Waits for the end of the process, at most for this time.
    fn wait(&mut self, most: Duration) {
        let until = Instant::now() + most;
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        if let Some(group) = rustix::process::Pid::from_raw(self.process.id().cast_signed()) {
            let _gone = rustix::process::kill_process_group(group, signal);
        }
    }
}

/// A target with this name, without endpoints or processes, with the default tools.
pub(crate) fn nowhere(name: &str) -> Target {
    Target {
        name: name.to_owned(),
        endpoints: Vec::new(),
        processes: Processes::default(),
        stores: Processes::default(),
        is_bare: false,
        echo: echo(),
        counts: Some(counts()),
        neighbour: None,
        cluster: None,
    }
}

/// The default tool of a load.
fn echo() -> Tool {
    Tool {
        name: "echo".to_owned(),
        arguments: r#"{"message":"The quick brown fox jumps over the lazy dog"}"#.to_owned(),
    }
}

/// The progress tool of our own servers and of the peers.
fn counts() -> Counts {
    Counts { name: "count".into(), times: "n".into(), interval_ms: "interval_ms".into() }
}

/// Starts a command in a process group of its own. The first line that it prints contains its
/// URLs, separated by spaces, and optionally the process of its Redis as `store=PID`.
pub(crate) fn start(name: &str, mut command: Command) -> anyhow::Result<Started> {
    use std::os::unix::process::CommandExt as _;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    let process = command.spawn().with_context(|| format!("starting {name}"))?;
    let target = Target { processes: Processes::of([process.id()]), ..nowhere(name) };
    let mut started = Started { target, process };
    let output = started.process.stdout.take().context("the server's output")?;
    let line = first_line(output).with_context(|| format!("{name} did not start"))?;
    for word in line.split_whitespace() {
        match word.strip_prefix("store=") {
            Some(pid) => {
                let pid = pid.parse()?;
                started.target.stores = Processes::of([pid]);
                started.target.processes.without(pid);
            }
            None => started.target.endpoints.push(Endpoint::parse(word)?),
        }
    }
    if started.target.endpoints.is_empty() {
        bail!("{name} did not start; it printed no URL");
    }
    Ok(started)
}

/// Reads the first line that a server prints. Later output is read and dropped, since a full
/// pipe would block the server.
fn first_line(output: ChildStdout) -> anyhow::Result<String> {
    let (said, saying) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        let _said = said.send(output.read_line(&mut line).map(|_| line));
        let _over = std::io::copy(&mut output, &mut std::io::sink());
    });
    Ok(saying.recv_timeout(START).context("it printed no line within 60 s")??)
}
