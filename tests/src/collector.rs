//! A collector of OpenTelemetry, which shows what arrived.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::sse::PATIENCE;
use crate::{Setup, tools};

/// A running collector. Dropping it kills the process.
#[derive(Debug)]
pub struct Collector {
    _process: Child,
    /// The URL to which nodes send.
    pub url: String,
    /// Where it shows what arrived.
    shown: String,
}

impl Collector {
    /// Starts a collector.
    pub async fn start() -> Result<Self> {
        Self::start_at(0).await
    }

    /// Starts a collector at this port; 0 for a free one.
    pub async fn start_at(port: u16) -> Result<Self> {
        Self::start_with(port, &[]).await
    }

    /// Starts a collector at this port that takes TLS only, with these files of a certificate and its key.
    pub async fn start_with(port: u16, tls: &[&Path]) -> Result<Self> {
        let mut command = Command::new(tools::python("otlp"));
        command.arg(tools::root().join("tests/servers/collector.py")).arg(port.to_string());
        command.args(tls);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let mut lines = BufReader::new(process.stdout.take().context("no stdout")?).lines();
        let first = tokio::time::timeout(PATIENCE, lines.next_line()).await??;
        let first: Value = serde_json::from_str(&first.context("the collector has ended")?)?;
        let text = |key: &str| first[key].as_str().map(str::to_owned).context("no URL");
        Ok(Self { url: text("url")?, shown: text("shown")?, _process: process })
    }

    /// The same node, which traces each message and sends its spans here at once.
    pub fn of(&self, setup: Setup) -> Setup {
        setup
            .with("otlp.endpoint", &self.url)
            .with("otlp.traces_one_in", 1)
            .with("otlp.batch_ms", 50)
    }

    /// The port to which nodes send.
    pub fn port(&self) -> Result<u16> {
        Ok(self.url.rsplit(':').next().context("no port")?.parse()?)
    }

    /// Everything that arrived.
    pub async fn arrived(&self) -> Result<Value> {
        let arrived: Value = reqwest::get(format!("{}/", self.shown)).await?.json().await?;
        ensure!(arrived["wrong"] == json!([]), "the collector got what is no OTLP: {arrived}");
        Ok(arrived)
    }

    /// Waits until a list of what arrived is as expected, and returns it.
    pub async fn until(&self, list: &str, is_due: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
        let until = Instant::now() + PATIENCE;
        loop {
            let arrived = self.arrived().await?;
            let all = arrived[list].as_array().context("no list")?.clone();
            if is_due(&all) {
                return Ok(all);
            }
            ensure!(Instant::now() < until, "{list} are not as expected: {all:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Has the collector answer with this status, after a delay.
    pub async fn answer(&self, status: u16, delay: Duration) -> Result<()> {
        self.control(json!({ "status": status, "delay": delay.as_secs_f64() })).await
    }

    /// Has the collector answer as these members say (`tests/servers/collector.py`).
    pub async fn control(&self, control: Value) -> Result<()> {
        let url = format!("{}/control", self.shown);
        reqwest::Client::new().post(url).json(&control).send().await?.error_for_status()?;
        Ok(())
    }
}
