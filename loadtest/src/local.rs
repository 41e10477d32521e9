//! A local cluster for a measurement: Redis, three nodes and nginx, as `deploy/local/cluster`
//! starts them, whose nodes may be killed and drained.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::target::{self, Target};
use crate::{cores, ours};

/// Starts it, asks it, and ends it.
pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/local/cluster");

/// A running cluster; it ends with this value, and with this process however that ends.
pub(crate) struct LocalCluster {
    pub(crate) target: Target,
    folder: PathBuf,
}

impl LocalCluster {
    /// Builds the program where nobody says which to take, and starts three nodes of it.
    pub(crate) fn start() -> anyhow::Result<Self> {
        if std::env::var_os("ROUNDHOUSE_BIN").is_none() {
            let mut cargo = Command::new("cargo");
            cargo.args(["build", "--release", "--quiet", "-p", "roundhouse"]);
            let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status()?;
            ensure!(built.success(), "the program does not build");
        }
        let this = std::process::id().to_string();
        let folder = std::env::temp_dir().join(format!("loadtest-{this}"));
        let mut up = cores::on_server_core(SCRIPT);
        up.args(["up", "--nodes", "3", "--until", &this, "--dir"]).arg(&folder);
        let started = up.stdout(Stdio::null()).status().context("deploy/local/cluster")?;
        let mut cluster = Self { target: target::nowhere("local-cluster"), folder };
        ensure!(started.success(), "deploy/local/cluster up failed");
        cluster.target = ours::cluster(&cluster.folder.join("cluster.json"))?;
        Ok(cluster)
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        let mut down = Command::new(SCRIPT);
        down.args(["down", "--now", "--dir"]).arg(&self.folder).stdout(Stdio::null());
        if down.status().is_ok_and(|status| status.success()) {
            let _gone = std::fs::remove_dir_all(&self.folder);
        }
    }
}
