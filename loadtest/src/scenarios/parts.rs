//! Sessions that exceed the limit of open files of one process: further processes of this
//! program hold them.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::Load;
use super::hold::Held;
use crate::figures::Tally;
use crate::target::{self, Target};

/// The maximum number of sessions that one process holds.
const SESSIONS_MAX: usize = 19_000;
/// The longest time for a part to open its sessions.
const PATIENCE: Duration = Duration::from_secs(300);

/// The arguments of a part.
#[derive(Args)]
pub(crate) struct Part {
    /// The endpoints of the server.
    #[arg(required = true)]
    urls: Vec<String>,
    #[arg(long)]
    sessions: usize,
    #[arg(long)]
    first: usize,
    #[arg(long)]
    idle: bool,
}

/// The report of a part, once its sessions are open.
#[derive(Serialize, Deserialize)]
struct Opened {
    held: usize,
    failures: BTreeMap<String, u64>,
}

/// Holds sessions until its input closes.
pub(crate) async fn hold(part: &Part) -> anyhow::Result<()> {
    let mut target = target::nowhere("part");
    for url in &part.urls {
        target.endpoints.push(crate::mcp::Endpoint::parse(url)?);
    }
    let mut tally = Tally::new()?;
    let held = Held { sessions: part.sessions, first: part.first, idle: part.idle };
    let held = held.open(&target, &ProgressBar::hidden(), &mut tally).await?;
    let opened = Opened { held: held.len(), failures: tally.failures().clone() };
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::to_string(&opened)?)?;
    out.flush()?;
    // Blocks the thread, which has no other work. The kernel buffers events that arrive.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The other processes. They are killed when this value is dropped.
pub(super) struct Parts(Vec<Child>);

impl Parts {
    /// Starts as many parts as are needed. Returns the number of sessions of this process, too.
    pub(super) fn start(target: &Target, load: &Load) -> anyhow::Result<(usize, Self)> {
        let mine = load.sessions.min(SESSIONS_MAX);
        let mut parts = Vec::new();
        let mut first = mine;
        while first < load.sessions {
            let sessions = (load.sessions - first).min(SESSIONS_MAX);
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("part").args(target.endpoints.iter().map(ToString::to_string));
            command.args(["--sessions", &sessions.to_string(), "--first", &first.to_string()]);
            command.args(load.idle.then_some("--idle"));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
            parts.push(command.spawn().context("starting a part")?);
            first += sessions;
        }
        Ok((mine, Self(parts)))
    }

    /// Waits until all parts have opened their sessions. Returns the number of open sessions, and
    /// counts the failed ones.
    pub(super) async fn opened(&mut self, tally: &mut Tally) -> anyhow::Result<usize> {
        let mut held = 0;
        for part in &mut self.0 {
            let output = part.stdout.take().context("a part's output")?;
            let mut lines = BufReader::new(output).lines();
            let line =
                timeout(PATIENCE, lines.next_line()).await.context("a part did not answer")?;
            let opened: Opened = serde_json::from_str(&line?.context("a part has failed")?)?;
            held += opened.held;
            tally.elsewhere(opened.held as u64, opened.failures);
        }
        Ok(held)
    }
}
