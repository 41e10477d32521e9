//! A Prometheus with the configuration in `deploy/prometheus`, which scrapes the nodes of a test.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::tools;

/// The maximum time for Prometheus to start.
const START: Duration = Duration::from_secs(20);

/// A running Prometheus. It ends when this value is dropped, and when this process ends for any
/// reason.
#[derive(Debug)]
pub struct Prometheus {
    process: Child,
    http: reqwest::Client,
    base: String,
    _dir: tempfile::TempDir,
    /// The server ends when this pipe closes.
    _leash: ChildStdin,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes these admin addresses, `http://host:port`, each second,
    /// and waits until it does.
    pub async fn start(nodes: &[&str]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let shipped = tools::root().join("deploy/prometheus");
        let config = std::fs::read_to_string(shipped.join("prometheus.yml"))?;
        ensure!(config.contains(" 15s\n"), "deploy/prometheus/prometheus.yml has another interval");
        std::fs::write(dir.path().join("prometheus.yml"), config.replace(" 15s\n", " 1s\n"))?;
        std::fs::copy(shipped.join("rules.yml"), dir.path().join("rules.yml"))?;
        std::fs::write(dir.path().join("nodes.yml"), targets(nodes))?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let file = |name: &str| dir.path().join(name).display().to_string();
        let mut process = Command::new(tools::root().join("deploy/local/redis-test"))
            .args(["run", "prometheus", "--log.level=error"])
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg(format!("--config.file={}", file("prometheus.yml")))
            .arg(format!("--storage.tsdb.path={}", file("data")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("starting Prometheus; tests/setup installs it")?;
        let _leash = process.stdin.take().context("no pipe to Prometheus")?;
        let (http, base) = (reqwest::Client::new(), format!("http://127.0.0.1:{port}"));
        let prometheus = Self { process, http, base, _dir: dir, _leash };
        prometheus.wait_until_ready().await?;
        let up = format!("count(up == 1) == {}", nodes.len());
        let until = Instant::now() + START;
        while prometheus.now(&up).await?.is_empty() {
            ensure!(Instant::now() < until, "Prometheus does not scrape the nodes");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(prometheus)
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let until = Instant::now() + START;
        loop {
            let asked = self.http.get(format!("{}/-/ready", self.base)).send().await;
            if asked.is_ok_and(|answer| answer.status() == 200) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "Prometheus did not start; tests/setup installs it");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The current series of an expression.
    pub async fn now(&self, expression: &str) -> Result<Vec<Value>> {
        let data = self.ask("query", &[("query", expression)]).await?;
        series(data, expression)
    }

    /// All values of an expression in the last `secs` seconds, of all its series.
    pub async fn lately(&self, expression: &str, secs: u64) -> Result<Vec<f64>> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
        let (start, end) = ((now - secs).to_string(), now.to_string());
        let range = [("query", expression), ("start", &start), ("end", &end), ("step", "1")];
        let data = self.ask("query_range", &range).await?;
        let series = series(data, expression)?;
        let values = series.iter().flat_map(|series| series["values"].as_array()).flatten();
        let values = values.filter_map(|pair| pair[1].as_str()?.parse().ok());
        Ok(values.collect())
    }

    /// The alert rules: each with `name`, `query`, `health`, `state`.
    pub async fn alerts(&self) -> Result<Vec<Value>> {
        let data = self.ask("rules", &[("type", "alert")]).await?;
        let groups = data["groups"].as_array().context("no groups")?;
        Ok(groups.iter().flat_map(|group| group["rules"].as_array()).flatten().cloned().collect())
    }

    async fn ask(&self, what: &str, query: &[(&str, &str)]) -> Result<Value> {
        let url = reqwest::Url::parse_with_params(&format!("{}/api/v1/{what}", self.base), query)?;
        let mut answer: Value = self.http.get(url).send().await?.json().await?;
        ensure!(answer["status"] == "success", "{query:?}: {}", answer["error"]);
        Ok(answer["data"].take())
    }
}

fn series(mut data: Value, expression: &str) -> Result<Vec<Value>> {
    match data["result"].take() {
        Value::Array(series) => Ok(series),
        other => bail!("{expression}: not a list but {other}"),
    }
}

fn targets(nodes: &[&str]) -> String {
    let nodes = nodes.iter().map(|node| format!("    - {}\n", node.trim_start_matches("http://")));
    format!("- targets:\n{}", nodes.collect::<String>())
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // The guard process ends the server when it gets SIGTERM.
        let pid = rustix::process::Pid::from_child(&self.process);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _status = self.process.wait();
    }
}

/// Runs `promtool`, which must report no error.
pub fn promtool(arguments: &[&str], file: &Path) -> Result<()> {
    let output = Command::new("promtool").args(arguments).arg(file).output();
    let output = output.context("promtool does not start; tests/setup installs it")?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    Ok(())
}
