//! The public conformance suite.
//!
//! The exit code of the suite ignores warnings, so this module reads the reports of the suite:
//! each check must have the status success, info or skipped.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::tools;

pub mod client;

/// The maximum time of one run.
const PATIENCE: Duration = Duration::from_secs(240);

/// The package of the suite.
const SUITE: &str = "@modelcontextprotocol/conformance";
/// The last stable version before it.
const SUITE_BEFORE: &str = "conformance-0.1";

/// A part of the suite that a server has to pass.
#[derive(Clone, Copy, Debug)]
pub struct Set {
    package: &'static str,
    args: &'static [&'static str],
    /// The minimum number of scenarios that must run.
    scenarios: usize,
}

/// The suite has few scenarios for 2025-03-26, the first revision with Streamable HTTP.
pub const OF_2025_03_26: Set = all(&["--suite", "all", "--spec-version", "2025-03-26"], 1);
/// Every scenario of 2025-06-18.
pub const OF_2025_06_18: Set = all(&["--suite", "all", "--spec-version", "2025-06-18"], 27);
/// Every scenario of 2025-11-25.
pub const OF_2025_11_25: Set = all(&["--suite", "all", "--spec-version", "2025-11-25"], 33);
/// The frozen requirements of 2025-11-25.
pub const FROZEN: Set = all(&["--requirements", "2025-11-25"], 30);
/// All scenarios of the version before.
pub const BEFORE: Set = Set { package: SUITE_BEFORE, args: &["--suite", "all"], scenarios: 30 };
/// All sets.
pub const ALL: [Set; 5] = [OF_2025_03_26, OF_2025_06_18, OF_2025_11_25, FROZEN, BEFORE];

const fn all(args: &'static [&'static str], scenarios: usize) -> Set {
    Set { package: SUITE, args, scenarios }
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The number of scenarios with a report.
    pub ran: usize,
    /// Scenarios with failed checks, in the order in which they ran: one after another.
    pub complaints: Vec<Complaint>,
    /// Whether the suite itself reports success.
    pub is_content: bool,
    /// The output of the suite.
    pub said: String,
}

/// A scenario with failed checks.
#[derive(Debug)]
pub struct Complaint {
    /// The name of the scenario, and the failed checks.
    pub text: String,
    /// The time from the start of the scenario until its report was written.
    pub ran: Range<SystemTime>,
}

impl Set {
    /// Runs the set against an endpoint; every check must pass.
    pub async fn passes(self, url: &str) -> Result<()> {
        let Report { ran, complaints, is_content, said } = self.run(url).await?;
        let texts: Vec<String> = complaints.into_iter().map(|complaint| complaint.text).collect();
        ensure!(texts.is_empty(), "{}\n{said}", texts.join("\n"));
        ensure!(is_content, "the suite fails: {said}");
        ensure!(ran >= self.scenarios, "{ran} scenarios ran, not {}\n{said}", self.scenarios);
        Ok(())
    }

    /// Runs the set and returns its report.
    pub async fn run(self, url: &str) -> Result<Report> {
        let folder = tempfile::tempdir()?;
        let program = tools::installed("node_modules").join(self.package).join("dist/index.js");
        let mut command = Command::new(tools::node());
        command.arg(program).args(["server", "--url", url]).args(self.args);
        command.arg("-o").arg(folder.path()).stdin(Stdio::null()).kill_on_drop(true);
        let began = SystemTime::now();
        let output =
            tokio::time::timeout(PATIENCE, command.output()).await.context("timed out")??;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let (ran, complaints) = read(folder.path(), began)?;
        Ok(Report { ran, complaints, is_content: output.status.success(), said })
    }
}

/// The number of scenarios with a report, and the scenarios with failed checks.
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
        // SKIPPED: the server need not offer the feature. The fixture offers all features except
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
