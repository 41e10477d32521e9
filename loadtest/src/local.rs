//! A local cluster for a measurement: Redis, three nodes and nginx, started by
//! `deploy/local/cluster`. Its nodes may be killed and drained.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::target::{self, Target};
use crate::{cores, ours};

/// The script that starts the cluster, controls its nodes, and stops it.
pub(crate) const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/local/cluster");

/// The script that runs a program until its standard input closes.
pub(crate) const LEASH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/local/redis-test");

/// The worker processes of nginx where calls are measured beside long messages. One that reads a body of 3 MB
/// does nothing else for 7 to 13 ms, so with two of them calls of others waited for nginx, and not for a node.
const BALANCER_WORKERS: &str = "8";

/// A running cluster. It stops when this value is dropped, and when this process ends for any
/// reason.
pub(crate) struct LocalCluster {
    pub(crate) target: Target,
    folder: PathBuf,
}

impl LocalCluster {
    /// Starts three nodes with the demo, Redis and nginx on the servers' core.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut up = cores::on_server_core(SCRIPT);
        up.args(["up", "--nodes", "3", "--bin"]).arg(program()?);
        Self::run(up)
    }

    /// Starts so many nodes with the settings of this file on the servers' core, and Redis and nginx on the
    /// load's core: they stand for other machines. `folder` is where the file is.
    pub(crate) fn start_apart(
        nodes: usize,
        settings: &Path,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let node = folder.join("node");
        std::fs::write(&node, cores::script_behind_others(&program()?))?;
        std::fs::set_permissions(&node, Permissions::from_mode(0o755))?;
        let mut up = cores::on_load_core(SCRIPT);
        up.args(["up", "--nodes", &nodes.to_string(), "--bin"]).arg(node);
        up.arg("--config").arg(settings).args(["--balancer-workers", BALANCER_WORKERS]);
        Self::run(up)
    }

    fn run(mut up: Command) -> anyhow::Result<Self> {
        let this = std::process::id().to_string();
        let folder = std::env::temp_dir().join(format!("loadtest-{this}"));
        up.args(["--until", &this, "--dir"]).arg(&folder);
        let started = up.stdout(Stdio::null()).status().context("deploy/local/cluster")?;
        let mut cluster = Self { target: target::nowhere("local-cluster"), folder };
        ensure!(started.success(), "deploy/local/cluster up failed");
        cluster.target = ours::cluster(&cluster.folder.join("cluster.json"))?;
        Ok(cluster)
    }

    /// The URL of the balancer.
    pub(crate) fn base(&self) -> anyhow::Result<String> {
        let endpoint = self.target.endpoints.first().context("the cluster has no balancer")?;
        Ok(format!("http://{}", endpoint.address))
    }
}

/// The program of the nodes: the one that `ROUNDHOUSE_BIN` names, or one that is built now with
/// the same profile as this program.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    if let Some(program) = std::env::var_os("ROUNDHOUSE_BIN") {
        return Ok(program.into());
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet", "-p", "roundhouse"]).current_dir(root);
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    if profile == "release" {
        cargo.arg("--release");
    }
    ensure!(cargo.status()?.success(), "the program does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| Path::new(root).join("target"));
    Ok(target.join(profile).join("roundhouse"))
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
