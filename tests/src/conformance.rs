//! The public conformance suite.
//!
//! Its exit code ignores warnings, so its reports are read instead: a check may pass or
//! inform, nothing else.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::tools;

/// How long one run may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// The suite.
const SUITE: &str = "@modelcontextprotocol/conformance";
/// Its last stable predecessor.
const SUITE_BEFORE: &str = "conformance-0.1";

/// A part of the suite that a server has to pass.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    package: &'static str,
    args: &'static [&'static str],
    /// How many scenarios must have run at least.
    scenarios: usize,
}

/// What was ready for the first revision with Streamable HTTP: little.
pub const OF_2025_03_26: Set = all(&["--suite", "all", "--spec-version", "2025-03-26"], 1);
/// Every scenario of 2025-06-18.
pub const OF_2025_06_18: Set = all(&["--suite", "all", "--spec-version", "2025-06-18"], 27);
/// Every scenario of 2025-11-25.
pub const OF_2025_11_25: Set = all(&["--suite", "all", "--spec-version", "2025-11-25"], 33);
/// The frozen requirements of 2025-11-25.
pub const FROZEN: Set = all(&["--requirements", "2025-11-25"], 30);
/// Everything of the suite before.
pub const BEFORE: Set = Set { package: SUITE_BEFORE, args: &["--suite", "all"], scenarios: 30 };
/// All of them.
pub const ALL: [Set; 5] = [OF_2025_03_26, OF_2025_06_18, OF_2025_11_25, FROZEN, BEFORE];

const fn all(args: &'static [&'static str], scenarios: usize) -> Set {
    Set { package: SUITE, args, scenarios }
}

/// What a run had to say.
#[derive(Debug)]
pub struct Report {
    /// How many scenarios reported.
    pub ran: usize,
    /// Scenarios that complain, in the order in which they ran: one after the other.
    pub complaints: Vec<Complaint>,
    /// Whether the suite itself is content.
    pub is_content: bool,
    /// What it printed.
    pub said: String,
}

/// A scenario that is not content.
#[derive(Debug)]
pub struct Complaint {
    /// Its name, and what is wrong.
    pub text: String,
    /// When it began, and when it had its report written.
    pub ran: Range<SystemTime>,
}

impl Set {
    /// Runs the set against an endpoint, where nothing may be wrong.
    pub async fn passes(self, url: &str) -> Result<()> {
        let Report { ran, complaints, is_content, said } = self.run(url).await?;
        let texts: Vec<String> = complaints.into_iter().map(|complaint| complaint.text).collect();
        ensure!(texts.is_empty(), "{}\n{said}", texts.join("\n"));
        ensure!(is_content, "the suite fails: {said}");
        ensure!(ran >= self.scenarios, "{ran} scenarios ran, not {}\n{said}", self.scenarios);
        Ok(())
    }

    /// Runs the set, and tells what it says.
    pub async fn run(self, url: &str) -> Result<Report> {
        let folder = tempfile::tempdir()?;
        let program = tools::installed("node_modules").join(self.package).join("dist/index.js");
        let mut command = Command::new(tools::node());
        command.arg(program).args(["server", "--url", url]).args(self.args);
        command.arg("-o").arg(folder.path()).stdin(Stdio::null()).kill_on_drop(true);
        let began = SystemTime::now();
        let output =
            tokio::time::timeout(PATIENCE, command.output()).await.context("it hangs")??;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (ran, complaints) = read(folder.path(), began)?;
        Ok(Report { ran, complaints, is_content: output.status.success(), said })
    }
}

/// How many scenarios reported, and what they complain about.
fn read(folder: &Path, began: SystemTime) -> Result<(usize, Vec<Complaint>)> {
    let mut reports = Vec::new();
    for scenario in fs::read_dir(folder)? {
        let scenario = scenario?;
        let report = scenario.path().join("checks.json");
        let ended = fs::metadata(&report).context("no report")?.modified()?;
        reports.push((ended, scenario.file_name().to_string_lossy().into_owned(), report));
    }
    reports.sort();
    let mut complaints = Vec::new();
    let mut since = began;
    for (ended, name, report) in &reports {
        let checks: Vec<Value> = serde_json::from_str(&fs::read_to_string(report)?)?;
        // SKIPPED stands where a server need not offer something; ours offers all but
        // extensions, which the handshake revisions do not have.
        let is_fine =
            |check: &&Value| ["SUCCESS", "INFO", "SKIPPED"].iter().any(|f| check["status"] == *f);
        let wrong: Vec<String> = checks
            .iter()
            .filter(|check| !is_fine(check))
            .map(|c| format!("{name}: {c:#}"))
            .collect();
        let ran = std::mem::replace(&mut since, *ended)..*ended;
        if !wrong.is_empty() {
            complaints.push(Complaint { text: wrong.join("\n"), ran });
        }
    }
    Ok((reports.len(), complaints))
}
