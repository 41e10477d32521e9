//! The scenarios of the suite for clients. The suite is the server, and judges what reaches it.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use super::{PATIENCE, SUITE, read};
use crate::tools;

/// How long the suite takes to start its server, at most.
const START: Duration = Duration::from_secs(30);

/// What the suite runs as the client: it says where the server is, and ends when the test has used it.
const STAND_IN: &str = "printf %s \"$2\" >\"$1/url.part\"\nmv \"$1/url.part\" \"$1/url\"\n\
                        while [ ! -e \"$1/done\" ]; do sleep 0.05; done\n";

/// Runs a scenario of a revision. `client` uses the server at the URL that it is given; then every check
/// must pass.
pub async fn scenario<F>(name: &str, revision: &str, client: impl FnOnce(String) -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    let folder = tempfile::tempdir()?;
    let (stand_in, results) = (folder.path().join("client"), folder.path().join("results"));
    fs::write(&stand_in, STAND_IN)?;
    let program = tools::installed("node_modules").join(SUITE).join("dist/index.js");
    let mut command = Command::new(tools::node());
    command.arg(program).args(["client", "--scenario", name, "--spec-version", revision]);
    let stand_in = format!("sh {} {}", stand_in.display(), folder.path().display());
    command.args(["--command", &stand_in, "--timeout", &PATIENCE.as_millis().to_string()]);
    command.arg("-o").arg(&results).stdin(Stdio::null()).kill_on_drop(true);
    let began = SystemTime::now();
    let suite = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let used = match url(folder.path()).await {
        Ok(url) => client(url).await,
        Err(error) => Err(error),
    };
    fs::write(folder.path().join("done"), "")?;
    let output = timeout(PATIENCE, suite.wait_with_output()).await.context("timed out")??;
    let said = String::from_utf8_lossy(&output.stderr);
    used.with_context(|| format!("{name}: {said}"))?;
    let (ran, complaints) = read(&results, began)?;
    let texts: Vec<String> = complaints.into_iter().map(|complaint| complaint.text).collect();
    ensure!(texts.is_empty(), "{}\n{said}", texts.join("\n"));
    ensure!(ran == 1 && output.status.success(), "{name}: {ran} reports\n{said}");
    Ok(())
}

/// The URL of the suite's server, once it is there.
async fn url(folder: &Path) -> Result<String> {
    let until = Instant::now() + START;
    loop {
        match fs::read_to_string(folder.join("url")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                ensure!(Instant::now() < until, "the suite did not start its server");
                sleep(Duration::from_millis(20)).await;
            }
            read => return Ok(read?),
        }
    }
}
