//! A server of the TypeScript SDK over Streamable HTTP that keeps the headers of the requests that it gets.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::time::sleep;

use crate::mcp::Client;
use crate::nodes::port;
use crate::sse::PATIENCE;
use crate::tools;

/// A server that keeps the headers of requests. Dropping it kills this process only.
pub struct Upstream {
    _child: tokio::process::Child,
    /// Its origin; the endpoint is at `/mcp`.
    pub url: String,
}

impl Upstream {
    /// Starts one.
    pub async fn start() -> Result<Self> {
        let port = port()?;
        let mut command = tokio::process::Command::new(tools::node());
        command.arg(tools::root().join("tests/servers/headers.mjs")).arg(port.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.kill_on_drop(true).spawn()?;
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < until, "the server does not listen");
            sleep(Duration::from_millis(20)).await;
        }
        Ok(Self { _child: child, url: format!("http://127.0.0.1:{port}") })
    }

    /// Whose token the server got for a call of this client.
    pub async fn whoami(client: &Client) -> Result<Value> {
        let result = client.tool("whoami", serde_json::json!({})).await?;
        let text = result["content"][0]["text"].as_str().context("no text")?;
        Ok(serde_json::from_str(text)?)
    }

    /// The requests: what each is, and its headers.
    pub async fn seen(&self) -> Result<Vec<Value>> {
        Ok(reqwest::get(format!("{}/seen", self.url)).await?.json().await?)
    }

    /// Refuses all tokens that it has got.
    pub async fn revoke(&self) -> Result<()> {
        reqwest::get(format!("{}/revoke", self.url)).await?.error_for_status()?;
        Ok(())
    }
}
