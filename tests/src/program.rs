//! Runs the small client programs of `tests/clients`, and reads what they saw.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::process::Command;

use crate::tools;

/// How long a scenario may take.
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
}

impl Program {
    /// Plays a scenario against an endpoint; gives what the program printed, line by line.
    pub async fn play(self, url: &str, scenario: &str) -> Result<Seen> {
        let (program, script) = self.command();
        let mut command = Command::new(program);
        command.arg(script).args([url, scenario]).stdin(Stdio::null()).kill_on_drop(true);
        let run = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = run.with_context(|| format!("{self:?} hangs in {scenario}"))??;
        let (out, err) =
            (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            bail!("{self:?} fails in {scenario}: {}\n{out}\n{err}", output.status);
        }
        let lines = out.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        Ok(Seen(lines.with_context(|| format!("{self:?} printed no JSON:\n{out}\n{err}"))?))
    }

    fn command(self) -> (PathBuf, PathBuf) {
        let clients = tools::root().join("tests/clients");
        match self {
            Self::TypeScript1 => (tools::node(), clients.join("ts1/client.mjs")),
            Self::TypeScript2 => (tools::node(), clients.join("ts2/client.mjs")),
            Self::Python1 => (tools::python("py1"), clients.join("py1/client.py")),
            Self::Python2 => (tools::python("py2"), clients.join("py2/client.py")),
        }
    }
}

/// What a client saw, each as `{"saw": kind, ...}`.
#[derive(Clone, Debug)]
pub struct Seen(pub Vec<Value>);

impl Seen {
    /// The only thing of a kind.
    pub fn one(&self, kind: &str) -> Result<&Value> {
        match self.all(kind)[..] {
            [one] => Ok(one),
            ref other => bail!("one {kind} was due, not {}: {:?}", other.len(), self.0),
        }
    }

    /// Everything of a kind, in order.
    pub fn all(&self, kind: &str) -> Vec<&Value> {
        self.0.iter().filter(|line| line["saw"] == kind).collect()
    }
}
