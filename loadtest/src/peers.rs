//! What a user would pick instead: each peer a folder of `loadtest/peers` with a `run`
//! that installs it on first use, starts it, and prints its URL.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::target::{self, Started};

/// The folder of the peers' set-ups.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Every peer that there is, in order of name.
pub(crate) fn names() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder()).context("the peers' folder")? {
        let entry = entry?;
        if entry.path().join("run").is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}

/// Installs a peer where it is not yet, which may take a minute, and starts it on a core.
pub(crate) fn start(name: &str, core: usize) -> anyhow::Result<Started> {
    let run = folder().join(name).join("run");
    ensure!(run.is_file(), "there is no peer `{name}`; there is: {}", names()?.join(", "));
    let installed = Command::new(&run).arg("install").status()?;
    ensure!(installed.success(), "{} install failed", run.display());
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(run).arg("serve");
    target::start(name, command)
}
