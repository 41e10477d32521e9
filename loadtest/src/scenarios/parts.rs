//! More sessions than one process may open files for: other processes of this program hold
//! the rest.

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

/// Sessions that one process holds.
const SESSIONS_MAX: usize = 19_000;
/// How long a part may take to open its sessions.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a part is told.
#[derive(Args)]
pub(crate) struct Part {
    /// Where.
    #[arg(required = true)]
    urls: Vec<String>,
    #[arg(long)]
    sessions: usize,
    #[arg(long)]
    first: usize,
    #[arg(long)]
    idle: bool,
}

/// What a part says when its sessions are open.
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
    // Nothing else is to be done by this thread: what comes meanwhile waits in the kernel.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The other processes. They end with this value.
pub(super) struct Parts(Vec<Child>);

impl Parts {
    /// Starts as many as are needed, and says how many sessions are left for this process.
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

    /// Waits until all sessions are open; says how many are, and counts the others.
    pub(super) async fn opened(&mut self, tally: &mut Tally) -> anyhow::Result<usize> {
        let mut held = 0;
        for part in &mut self.0 {
            let output = part.stdout.take().context("a part's output")?;
            let mut lines = BufReader::new(output).lines();
            let line =
                timeout(PATIENCE, lines.next_line()).await.context("a part takes too long")?;
            let opened: Opened = serde_json::from_str(&line?.context("a part has failed")?)?;
            held += opened.held;
            tally.elsewhere(opened.held as u64, opened.failures);
        }
        Ok(held)
    }
}
