//! Runs the small client programs of `tests/clients`, and reads their output.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::tools;

/// The maximum time of a scenario.
const PATIENCE: Duration = Duration::from_secs(60);

/// One of the client programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The TypeScript SDK, 1.x.
    TypeScript1,
    /// The TypeScript SDK, 2.x.
    TypeScript2,
    /// The Python SDK, 1.x.
    Python1,
    /// The Python SDK, 2.x.
    Python2,
    /// FastMCP's client.
    FastMcp,
}

impl Program {
    /// Runs a scenario against an endpoint; returns the output of the program, line by line.
    pub async fn play(self, url: &str, scenario: &str) -> Result<Seen> {
        self.play_with(url, scenario, &[]).await
    }

    /// Runs a scenario as a client that signs in where the endpoint asks for a token.
    pub async fn play_signed_in(self, url: &str, scenario: &str) -> Result<Seen> {
        self.play_with(url, scenario, &[("STORY_SIGNS_IN", "1")]).await
    }

    /// The same, as an application whose id is the URL of a document about it.
    pub async fn play_signed_in_as(self, url: &str, scenario: &str, id: &str) -> Result<Seen> {
        let env = [("STORY_SIGNS_IN", "1"), ("STORY_CLIENT_ID", id)];
        self.play_with(url, scenario, &env).await
    }

    async fn play_with(self, url: &str, scenario: &str, env: &[(&str, &str)]) -> Result<Seen> {
        let (program, script) = self.command();
        let mut command = Command::new(program);
        command.arg(script).args([url, scenario]).stdin(Stdio::null()).kill_on_drop(true);
        command.envs(env.iter().copied());
        let run = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = run.with_context(|| format!("{self:?} timed out in {scenario}"))??;
        let (out, err) =
            (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            bail!("{self:?} fails in {scenario}: {}\n{out}\n{err}", output.status);
        }
        let lines = out.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        Ok(Seen(lines.with_context(|| format!("{self:?} printed no JSON:\n{out}\n{err}"))?))
    }

    /// Starts a scenario that runs for as long as a file exists; some wait for another one, with the
    /// extension `begun`. The returned value gives the output of the program meanwhile.
    pub fn start(self, url: &str, scenario: &str, goes_on: &Path) -> Result<Playing> {
        let (program, script) = self.command();
        let mut command = Command::new(program);
        command.arg(script).args([url, scenario]).env("STORY_GOES_ON", goes_on);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.kill_on_drop(true).spawn()?;
        let seen = Arc::<Mutex<Vec<Value>>>::default();
        let mut lines = BufReader::new(process.stdout.take().context("no stdout")?).lines();
        let diary = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                diary.lock().expect("no thread panics with it").push(line);
            }
        });
        let mut stderr = process.stderr.take().context("no stderr")?;
        let complaints = tokio::spawn(async move {
            let mut text = Vec::new();
            let _read = stderr.read_to_end(&mut text).await;
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Playing { program: self, process, seen, complaints })
    }

    fn command(self) -> (PathBuf, PathBuf) {
        let clients = tools::root().join("tests/clients");
        match self {
            Self::TypeScript1 => (tools::node(), clients.join("ts1/client.mjs")),
            Self::TypeScript2 => (tools::node(), clients.join("ts2/client.mjs")),
            Self::Python1 => (tools::python("py1"), clients.join("py1/client.py")),
            Self::Python2 => (tools::python("py2"), clients.join("py2/client.py")),
            Self::FastMcp => (tools::python("fastmcp"), clients.join("fastmcp/client.py")),
        }
    }
}

/// A running scenario.
#[derive(Debug)]
pub struct Playing {
    /// The program that runs the scenario.
    pub program: Program,
    process: Child,
    seen: Arc<Mutex<Vec<Value>>>,
    complaints: JoinHandle<String>,
}

impl Playing {
    /// The lines so far.
    pub fn seen(&self) -> Seen {
        Seen(self.seen.lock().expect("no thread panics with it").clone())
    }

    /// Waits for this number of further lines of a kind.
    pub async fn sees(&mut self, kind: &str, more: usize) -> Result<()> {
        let due = self.seen().all(kind).len() + more;
        self.has_seen(kind, due).await
    }

    /// Waits for this number of lines of a kind since the start.
    pub async fn has_seen(&mut self, kind: &str, due: usize) -> Result<()> {
        let until = tokio::time::Instant::now() + PATIENCE;
        while self.seen().all(kind).len() < due {
            let ended = self.process.try_wait()?;
            ensure!(ended.is_none(), "it ended early: {ended:?}, {:?}", self.seen().tail());
            let late = tokio::time::Instant::now() > until;
            ensure!(!late, "no {kind} for a long time: {:?}", self.seen().tail());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Waits until the program has ended with success; returns all lines.
    pub async fn end(mut self) -> Result<Seen> {
        let ended = tokio::time::timeout(PATIENCE, self.process.wait()).await;
        let status = ended.with_context(|| format!("timed out: {:?}", self.seen().tail()))??;
        let complaints = (&mut self.complaints).await?;
        ensure!(status.success(), "{status}: {:?}\n{complaints}", self.seen().tail());
        Ok(self.seen())
    }
}

/// The lines that a client printed, each as `{"saw": kind, ...}`.
#[derive(Clone, Debug)]
pub struct Seen(pub Vec<Value>);

impl Seen {
    /// The only line of a kind.
    pub fn one(&self, kind: &str) -> Result<&Value> {
        match self.all(kind)[..] {
            [one] => Ok(one),
            ref other => bail!("expected one {kind}, not {}: {:?}", other.len(), self.0),
        }
    }

    /// The last lines.
    pub fn tail(&self) -> &[Value] {
        &self.0[self.0.len().saturating_sub(12)..]
    }

    /// All lines of a kind, in order.
    pub fn all(&self, kind: &str) -> Vec<&Value> {
        self.0.iter().filter(|line| line["saw"] == kind).collect()
    }
}
