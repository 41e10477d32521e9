//! Peers: other MCP servers that a user could choose. Each is a folder of `loadtest/peers`
//! with a script `run`, which installs the peer on first use, starts it, and prints its URL.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use crate::cores;
use crate::target::{self, Started};

/// The folder of all peers.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Fails if the checkout of this build no longer exists. It contains the peers, and the
/// scripts that start Redis and a local cluster.
pub(crate) fn check_folder() -> anyhow::Result<()> {
    let folder = folder();
    ensure!(
        folder.is_dir(),
        "{} does not exist: the checkout of this build was removed; build in a checkout again",
        folder.display()
    );
    Ok(())
}

/// The names of all peers, sorted.
pub(crate) fn names() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let Ok(folder) = std::fs::read_dir(folder()) else { return Ok(names) };
    for entry in folder {
        let entry = entry?;
        if entry.path().join("run").is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}

/// Starts a peer. Installs it first if necessary, which may take a minute.
pub(crate) fn start(name: &str) -> anyhow::Result<Started> {
    let run = folder().join(name).join("run");
    let installed = Command::new(&run).arg("install").stdout(std::io::stderr()).status()?;
    ensure!(installed.success(), "its `run install` failed");
    let mut command = cores::on_server_core(run);
    command.arg("serve");
    target::start(name, command)
}
