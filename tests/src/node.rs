//! A node: a process of `roundhouse serve` with ports of its own.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};

use crate::excerpt::show;
use crate::tools;

/// The maximum time until a node prints its endpoint.
const START: Duration = Duration::from_secs(60);

/// The maximum time until a line that a node logs is in its output.
const LOGGED: Duration = Duration::from_secs(15);

/// The maximum number of lines of a node's output that are kept; the oldest lines are dropped.
const LINES_MAX: usize = 5_000;

/// The name of a node's settings file.
const CONFIG: &str = "roundhouse.toml";

/// The parameters of a node.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    config: Option<String>,
    command: Vec<String>,
    env: Vec<(String, String)>,
    folder: Option<PathBuf>,
    listen: Option<String>,
    program: Option<PathBuf>,
}

impl Setup {
    /// The built-in demo: the fixture in process.
    pub fn demo() -> Self {
        Self::default()
    }

    /// One command, hosted as the only server of the tenant `demo`.
    pub fn hosting<S: Into<String>>(command: impl IntoIterator<Item = S>) -> Self {
        Self { command: command.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// The fixture as a separate program.
    pub fn fixture() -> Self {
        Self::hosting([tools::built("everything").display().to_string()])
    }

    /// A server on loopback that is reached over HTTP, as the only one of the tenant `demo`.
    pub fn in_front_of(url: &str) -> Self {
        Self::config(format!(
            "[tenants.demo]\nauth = \"open\"\n[tenants.demo.backends.main]\nkind = \"http\"\n\
             url = \"{url}\"\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\n"
        ))
    }

    /// As [`Self::in_front_of`], with a server that is asked for this revision.
    pub fn in_front_of_asking(url: &str, revision: &str) -> Self {
        let config = Self::in_front_of(url).config.unwrap_or_default();
        Self::config(format!("{config}revision = \"{revision}\"\n"))
    }

    /// The text of a configuration file.
    pub fn config(toml: impl Into<String>) -> Self {
        Self { config: Some(toml.into()), ..Self::default() }
    }

    /// A variable of the node's environment, which a hosted command inherits.
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// The working folder.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// The address for clients, instead of a free port.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// The program of the node, instead of the one of this build.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// One setting, which overrides the file: `("sessions.idle_secs", 3)`.
    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        let key = format!("ROUNDHOUSE__{}", key.to_uppercase().replace('.', "__"));
        self.env.push((key, value.to_string()));
        self
    }

    /// Whether a setting overrides the file.
    pub fn has(&self, key: &str) -> bool {
        let key = format!("ROUNDHOUSE__{}", key.to_uppercase().replace('.', "__"));
        self.env.iter().any(|(set, _)| *set == key)
    }
}

/// A running node. Dropping it kills this process only.
#[derive(Debug)]
pub struct Node {
    child: Child,
    /// The URL for clients: `http://127.0.0.1:PORT`, or with `https` if the node has TLS.
    pub base: String,
    /// The URL for operators.
    pub admin: String,
    lines: Arc<Mutex<VecDeque<String>>>,
    folder: tempfile::TempDir,
}

impl Node {
    /// Starts a node and waits for its endpoint.
    pub fn start(setup: &Setup) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let program = setup.program.clone().unwrap_or_else(|| tools::built("roundhouse"));
        let mut command = Command::new(program);
        let listen = setup.listen.as_deref().unwrap_or("127.0.0.1:0");
        command.args(["serve", "--listen", listen, "--admin", "127.0.0.1:0"]);
        if let Some(config) = &setup.config {
            let file = folder.path().join(CONFIG);
            std::fs::write(&file, config)?;
            command.arg("--config").arg(file);
        }
        if let Some(folder) = &setup.folder {
            command.current_dir(folder);
        }
        if !setup.command.is_empty() {
            command.arg("--").args(&setup.command);
        }
        command.env("PATH", tools::path()).env("RUST_LOG", "info");
        // Not in the home directory of the developer.
        command.env("ROUNDHOUSE__NODE__STATE_DIR", folder.path().join("state"));
        command.envs(setup.env.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("roundhouse does not start")?;
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let (seen, said) = channel();
        read(child.stdout.take().context("no stdout")?, &lines, seen.clone());
        read(child.stderr.take().context("no stderr")?, &lines, seen);
        let mut node = Self { child, base: String::new(), admin: String::new(), lines, folder };
        node.wait_for_addresses(&said)?;
        Ok(node)
    }

    fn wait_for_addresses(&mut self, said: &Receiver<String>) -> Result<()> {
        let until = Instant::now() + START;
        while self.base.is_empty() || self.admin.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = said.recv_timeout(left) else {
                bail!("the node printed no endpoint; its output:\n{}", self.output());
            };
            let Some(address) = address(&line) else { continue };
            if line.contains("/mcp") {
                self.base = address;
            } else if line.contains("/metrics") || line.contains("admin") {
                self.admin = address;
            }
        }
        Ok(())
    }

    /// The Streamable HTTP endpoint of a tenant.
    pub fn mcp(&self, tenant: &str) -> String {
        format!("{}/{tenant}/mcp", self.base)
    }

    /// The endpoint of the tenant `demo`.
    pub fn demo(&self) -> String {
        self.mcp("demo")
    }

    /// The file of a node that was started with [`Setup::config`].
    pub fn config_file(&self) -> PathBuf {
        self.folder.path().join(CONFIG)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The output of the node, both streams, as far as it is kept.
    pub fn output(&self) -> String {
        let lines = self.lines.lock().expect("a reader panicked");
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Waits until the output contains this text. A node logs an event after it counts it, and a
    /// thread of this process reads the line later still.
    pub async fn logs(&self, text: &str) -> Result<()> {
        let until = Instant::now() + LOGGED;
        loop {
            let output = self.output();
            if output.contains(text) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{text:?} is not in the log:\n{output}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks the node to stop (SIGTERM) and waits until it has stopped.
    pub fn stop(mut self, within: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        let until = Instant::now() + within;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the node did not stop within {within:?}; its output:\n{}", self.output())
    }

    /// Kills the node as a crash would, and waits until it has ended.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends the process a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("no pid")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// The value of a metric at `/metrics`, summed over its labels.
    pub async fn metric(&self, name: &str) -> Result<Option<f64>> {
        let text = reqwest::get(format!("{}/metrics", self.admin)).await?.text().await?;
        let values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            rest.starts_with([' ', '{']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
        });
        Ok(values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value)))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        show("node", &self.output());
    }
}

/// Keeps the lines of one of the node's streams, and sends them to the receiver while it exists.
fn read(
    stream: impl Read + Send + 'static,
    lines: &Arc<Mutex<VecDeque<String>>>,
    seen: Sender<String>,
) {
    let lines = Arc::clone(lines);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = seen.send(line.clone());
            let mut lines = lines.lock().expect("another reader panicked");
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(line);
        }
    });
}

/// The first `http://host:port` or `https://host:port` of a line.
fn address(line: &str) -> Option<String> {
    let find = |scheme| Some((scheme, line.find(scheme)?));
    let (scheme, start) = find("http://").or_else(|| find("https://"))?;
    let rest = &line[start + scheme.len()..];
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".:[]-".contains(c)));
    let host = &rest[..end.unwrap_or(rest.len())];
    host.contains(':').then(|| format!("{scheme}{}", host.trim_end_matches(':')))
}
