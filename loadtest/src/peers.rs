//! What a user would pick instead: each peer a folder of `loadtest/peers` with a `run`
//! that installs it on first use, starts it, and prints its URL.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

use crate::cores;
use crate::target::{self, Started};

/// The folder of the peers' set-ups.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Is the checkout still there that this was built in? It has the peers, and what starts
/// Redis and a local cluster.
pub(crate) fn check_folder() -> anyhow::Result<()> {
    let folder = folder();
    ensure!(
        folder.is_dir(),
        "{} is gone, where this program was built; build it again in the checkout",
        folder.display()
    );
    Ok(())
}

/// Every peer that there is, in order of name.
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

/// Installs a peer where it is not yet, which may take a minute, and starts it.
pub(crate) fn start(name: &str) -> anyhow::Result<Started> {
    let run = folder().join(name).join("run");
    let installed = Command::new(&run).arg("install").stdout(std::io::stderr()).status()?;
    ensure!(installed.success(), "its `run install` failed");
    let mut command = cores::on_server_core(run);
    command.arg("serve");
    target::start(name, command)
}
