//! What is measured, and how it is started: our own servers, the peers, and anything by URL.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};

use crate::mcp::{Endpoint, Session, Tool};
use crate::process::Processes;
use crate::wire::Wire;

/// A server that runs.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// Every way in; a load without affinity uses them all.
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) processes: Processes,
    /// Its Redis, where it has one.
    pub(crate) stores: Processes,
    /// It speaks HTTP, but no MCP: every post is echoed.
    pub(crate) is_bare: bool,
    pub(crate) echo: Tool,
    /// A tool that reports progress: its name, and the names of its arguments for how
    /// often and how long between, in milliseconds.
    pub(crate) counts: Option<Counts>,
    /// Another tenant of the same server.
    pub(crate) neighbour: Option<Box<Target>>,
    /// `cluster.json` of a local cluster, whose nodes may be killed.
    pub(crate) cluster: Option<PathBuf>,
}

/// How a tool that reports progress is called.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    pub(crate) name: String,
    pub(crate) times: String,
    pub(crate) interval_ms: String,
}

impl Target {
    /// A session, or what stands for one at a server that has none.
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

    /// The tool that reports progress so often.
    pub(crate) fn count(&self, times: u64, interval_ms: u64) -> anyhow::Result<Tool> {
        let counts = self.counts.as_ref().context("the server has no tool that reports progress")?;
        let Counts { name, times: times_key, interval_ms: interval_key } = counts;
        let arguments = format!(r#"{{"{times_key}":{times},"{interval_key}":{interval_ms}}}"#);
        Ok(Tool { name: name.clone(), arguments })
    }
}

/// A server that was started for a measurement; it ends with this value.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) target: Target,
    process: Child,
}

impl Drop for Started {
    fn drop(&mut self) {
        // Ours ends by itself when its input closes; a peer's command is asked to.
        drop(self.process.stdin.take());
        if let Some(pid) = rustix::process::Pid::from_raw(self.process.id().cast_signed()) {
            let _gone = rustix::process::kill_process_group(pid, rustix::process::Signal::TERM);
        }
        let _status = self.process.wait();
    }
}

/// What a load calls where nobody says otherwise.
pub(crate) fn echo() -> Tool {
    Tool {
        name: "echo".to_owned(),
        arguments: r#"{"message":"The quick brown fox jumps over the lazy dog","number":42,"list":[1,2,3]}"#
            .to_owned(),
    }
}

/// The progress tool that our own servers and the peers have.
pub(crate) fn counts() -> Counts {
    Counts { name: "count".into(), times: "n".into(), interval_ms: "interval_ms".into() }
}

/// Starts a command on one core, in a process group of its own. The first line that it
/// prints names its URLs, separated by spaces.
pub(crate) fn start(name: &str, mut command: Command) -> anyhow::Result<Started> {
    use std::os::unix::process::CommandExt as _;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    let mut process = command.spawn().with_context(|| format!("starting {name}"))?;
    let stdout = process.stdout.take().context("the server's output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let urls: Vec<&str> = line.split_whitespace().collect();
    if urls.is_empty() {
        let _gone = process.kill();
        bail!("{name} did not start; it printed no URL");
    }
    let endpoints = urls.iter().map(|url| Endpoint::parse(url)).collect::<anyhow::Result<_>>()?;
    let target = Target {
        name: name.to_owned(),
        endpoints,
        processes: Processes(vec![process.id()]),
        stores: Processes::default(),
        is_bare: false,
        echo: echo(),
        counts: Some(counts()),
        neighbour: None,
        cluster: None,
    };
    Ok(Started { target, process })
}
