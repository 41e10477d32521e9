//! A whole cluster as `deploy/local/cluster` starts it: Redis, nodes, and nginx, which distributes
//! requests round robin.
//!
//! Every command goes through that script, and `cluster.json` of the script lists the processes.
//! So a test uses the same interface as an operator.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::excerpt::show;
use crate::tools;

/// The maximum time of one command of the script; each command has bounds of its own.
const PATIENCE: Duration = Duration::from_secs(150);

/// The parameters of a deployment.
#[derive(Clone, Debug)]
pub struct Plan {
    nodes: usize,
    config: Option<String>,
    env: Vec<(String, String)>,
}

impl Plan {
    /// Three nodes that serve the built-in demo: the fixture in process.
    pub fn demo() -> Self {
        Self { nodes: 3, config: None, env: Vec::new() }
    }

    /// Three nodes that host the fixture as a separate program.
    pub fn fixture() -> Self {
        let command = tools::built("everything").display().to_string();
        let toml = format!(
            "[tenants.demo]\nauth = \"open\"\n[tenants.demo.backends.fixture]\nkind = \"stdio\"\n\
             command = {command:?}\n"
        );
        Self { config: Some(toml), ..Self::demo() }
    }

    /// The configuration file of each node.
    pub fn config(mut self, toml: impl Into<String>) -> Self {
        self.config = Some(toml.into());
        self
    }

    /// The number of nodes.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// One setting of every node, which overrides the file: `("sessions.idle_secs", 3)`.
    pub fn with(self, key: &str, value: impl ToString) -> Self {
        let key = format!("ROUNDHOUSE__{}", key.to_uppercase().replace('.', "__"));
        self.env(&key, &value.to_string())
    }

    /// An environment variable of the script, and of all processes that it starts.
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Starts the deployment, and waits until all parts are ready.
    pub async fn start(&self) -> Result<Deployment> {
        let folder = tempfile::Builder::new().prefix("cluster-").tempdir()?;
        let mut up: Vec<String> =
            ["up", "--nodes", &self.nodes.to_string(), "--until", &std::process::id().to_string()]
                .map(Into::into)
                .into();
        if let Some(config) = &self.config {
            let file = folder.path().join("roundhouse.toml");
            std::fs::write(&file, config)?;
            up.extend(["--config".into(), file.display().to_string()]);
        }
        let mut deployment = Deployment { lb: String::new(), folder, env: self.env.clone() };
        deployment.run(&up.iter().map(String::as_str).collect::<Vec<_>>()).await?;
        deployment.lb = deployment.read()?["lb"].as_str().context("no lb")?.to_owned();
        Ok(deployment)
    }
}

/// A running deployment. It stops when this value is dropped, and when this process ends for any
/// reason.
#[derive(Debug)]
pub struct Deployment {
    /// The URL for clients: nginx.
    pub lb: String,
    folder: TempDir,
    env: Vec<(String, String)>,
}

/// The current state of one node.
#[derive(Clone, Debug)]
pub struct Member {
    /// `node1`, `node2`, …
    pub name: String,
    /// The process id; of a killed node, the id of its last process.
    pub pid: u32,
    /// The URL at which the balancer reaches the node.
    pub url: String,
    /// The URL for operators.
    pub admin: String,
}

impl Deployment {
    /// The Streamable HTTP endpoint of a tenant, behind the balancer.
    pub fn mcp(&self, tenant: &str) -> String {
        format!("{}/{tenant}/mcp", self.lb)
    }

    /// The endpoint of the tenant `demo`.
    pub fn demo(&self) -> String {
        self.mcp("demo")
    }

    /// The current state of the nodes.
    pub fn members(&self) -> Result<Vec<Member>> {
        let cluster = self.read()?;
        let nodes = cluster["nodes"].as_array().context("no nodes")?;
        nodes.iter().map(|node| member(node).with_context(|| format!("no node: {node}"))).collect()
    }

    /// The pid and the URL of its Redis.
    pub fn redis(&self) -> Result<(u32, String)> {
        let cluster = self.read()?;
        let pid = cluster["redis"]["pid"].as_u64().context("no pid")?;
        let url = cluster["redis"]["url"].as_str().context("no url")?;
        Ok((pid.try_into()?, url.to_owned()))
    }

    /// The content of `cluster.json`.
    pub fn read(&self) -> Result<Value> {
        let text = std::fs::read_to_string(self.folder().join("cluster.json"))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The folder of the deployment, with `cluster.json` and a log of each process.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The output of a process: `node1`, `redis` or `nginx`.
    pub fn output(&self, name: &str) -> String {
        let log = std::fs::read(self.folder().join(format!("{name}.log"))).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Takes a node out of the balancer, stops it in order and starts it again; also `redis`.
    pub async fn restart(&self, name: &str) -> Result<()> {
        self.run(&["restart", name]).await
    }

    /// Takes a node out of the balancer, then drains the node.
    pub async fn drain(&self, name: &str) -> Result<()> {
        self.run(&["drain", name]).await
    }

    /// Kills a node as a crash would; the balancer is not informed.
    pub async fn kill(&self, name: &str) -> Result<()> {
        self.run(&["kill", name]).await
    }

    /// Starts a killed or drained node again, at its address.
    pub async fn start(&self, name: &str) -> Result<()> {
        self.run(&["start", name]).await
    }

    /// Stops the whole deployment in order.
    pub async fn down(&self) -> Result<()> {
        self.run(&["down"]).await
    }

    /// Runs one command of the script; an error contains the output.
    pub async fn run(&self, words: &[&str]) -> Result<()> {
        let mut command = Command::new(script());
        command.args(words).arg("--dir").arg(self.folder());
        command.env("ROUNDHOUSE_BIN", tools::built("roundhouse")).env("PATH", tools::path());
        command.envs(self.env.iter().map(|(key, value)| (key, value))).stdin(Stdio::null());
        let run = tokio::time::timeout(PATIENCE, command.output()).await;
        let output = run.with_context(|| format!("`cluster {}` timed out", words.join(" ")))??;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("`cluster {}` fails: {}\n{said}", words.join(" "), output.status);
        }
        Ok(())
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        let mut command = std::process::Command::new(script());
        command.args(["down", "--now", "--dir"]).arg(self.folder()).stdin(Stdio::null());
        let _status = command.status();
        let mut names: Vec<String> = std::fs::read_dir(self.folder())
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".log")?.to_owned()))
            .collect();
        names.sort();
        for name in names {
            show(&name, &self.output(&name));
        }
    }
}

/// The path of the script.
pub fn script() -> std::path::PathBuf {
    tools::root().join("deploy/local/cluster")
}

fn member(node: &Value) -> Option<Member> {
    Some(Member {
        name: node["name"].as_str()?.to_owned(),
        pid: node["pid"].as_u64()?.try_into().ok()?,
        url: node["url"].as_str()?.to_owned(),
        admin: node["admin"].as_str()?.to_owned(),
    })
}
