//! The public conformance suite, against the fixture in process and as a program.
//!
//! The suite's exit code ignores warnings, so its reports are read instead: a check may
//! pass or inform, nothing else.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::{Node, Setup, tools};
use tokio::process::Command;

/// How long one run of the suite may take.
const PATIENCE: Duration = Duration::from_secs(240);

/// The suite and its last stable predecessor.
const SUITE: &str = "@modelcontextprotocol/conformance";
const SUITE_BEFORE: &str = "conformance-0.1";

#[tokio::test]
async fn the_fixture_in_process_conforms_to_2025_03_26() -> Result<()> {
    conforms(Setup::demo(), SUITE, &["--suite", "all", "--spec-version", "2025-03-26"], 1).await
}

#[tokio::test]
async fn the_fixture_in_process_conforms_to_2025_06_18() -> Result<()> {
    conforms(Setup::demo(), SUITE, &["--suite", "all", "--spec-version", "2025-06-18"], 27).await
}

#[tokio::test]
async fn the_fixture_in_process_conforms_to_2025_11_25() -> Result<()> {
    conforms(Setup::demo(), SUITE, &["--suite", "all", "--spec-version", "2025-11-25"], 33).await
}

#[tokio::test]
async fn the_fixture_in_process_meets_the_frozen_requirements_of_2025_11_25() -> Result<()> {
    conforms(Setup::demo(), SUITE, &["--requirements", "2025-11-25"], 30).await
}

#[tokio::test]
async fn the_fixture_in_process_conforms_to_the_suite_before() -> Result<()> {
    conforms(Setup::demo(), SUITE_BEFORE, &["--suite", "all"], 30).await
}

#[tokio::test]
async fn the_fixture_as_a_program_conforms_to_2025_03_26() -> Result<()> {
    conforms(Setup::fixture(), SUITE, &["--suite", "all", "--spec-version", "2025-03-26"], 1).await
}

#[tokio::test]
async fn the_fixture_as_a_program_conforms_to_2025_06_18() -> Result<()> {
    conforms(Setup::fixture(), SUITE, &["--suite", "all", "--spec-version", "2025-06-18"], 27).await
}

#[tokio::test]
async fn the_fixture_as_a_program_conforms_to_2025_11_25() -> Result<()> {
    conforms(Setup::fixture(), SUITE, &["--suite", "all", "--spec-version", "2025-11-25"], 33).await
}

/// Runs the suite against a node of its own, and wants at least so many scenarios.
async fn conforms(setup: Setup, suite: &str, args: &[&str], scenarios: usize) -> Result<()> {
    let node = Node::start(&setup)?;
    let folder = tempfile::tempdir()?;
    let program = tools::installed("node_modules").join(suite).join("dist/index.js");
    let mut command = Command::new(tools::node());
    command.arg(program).args(["server", "--url", &node.demo()]).args(args);
    command.arg("-o").arg(folder.path()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.context("it hangs")??;
    let said = String::from_utf8_lossy(&output.stdout);
    let (ran, complaints) = read(folder.path())?;
    ensure!(complaints.is_empty(), "{}\n{said}", complaints.join("\n"));
    ensure!(output.status.success(), "the suite fails: {}\n{said}", output.status);
    ensure!(ran >= scenarios, "{ran} scenarios ran, not {scenarios}\n{said}");
    Ok(())
}

/// How many scenarios reported, and what they complain about.
fn read(folder: &Path) -> Result<(usize, Vec<String>)> {
    let mut complaints = Vec::new();
    let mut ran = 0;
    for scenario in fs::read_dir(folder)? {
        let path = scenario?.path();
        let text = fs::read_to_string(path.join("checks.json")).context("no report")?;
        let checks: Vec<Value> = serde_json::from_str(&text)?;
        ran += 1;
        for check in &checks {
            // SKIPPED stands where a server need not offer something; ours offers all but
            // extensions, which the handshake revisions do not have.
            if !["SUCCESS", "INFO", "SKIPPED"].iter().any(|fine| check["status"] == *fine) {
                complaints.push(format!("{}: {check:#}", path.display()));
            }
        }
    }
    Ok((ran, complaints))
}
