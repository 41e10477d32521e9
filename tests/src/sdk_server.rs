//! A server of the TypeScript SDK that is reached over HTTP.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::http_servers::HttpServer;
use crate::tools;

/// `@modelcontextprotocol/server-everything` with a transport of its own. Dropping it kills this process
/// only.
#[derive(Debug)]
pub struct Everything(HttpServer);

impl Everything {
    /// Starts it at this port, with `streamableHttp` or `sse`.
    pub async fn start(port: u16, transport: &str) -> Result<Self> {
        let script = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
        let mut command = Command::new(tools::node());
        command.arg(tools::installed(script)).arg(transport).env("PORT", port.to_string());
        Ok(Self(HttpServer::run(command, port, tempfile::tempdir()?).await?))
    }

    /// Where its Streamable HTTP is.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// The lines that it printed.
    pub fn lines(&self) -> Result<Vec<String>> {
        self.0.lines()
    }

    /// The ids of the sessions that were begun.
    pub fn session_ids(&self) -> Result<Vec<String>> {
        let lines = self.lines()?;
        let ids =
            lines.iter().filter_map(|line| line.strip_prefix("Session initialized with ID: "));
        Ok(ids.map(str::to_owned).collect())
    }

    /// Ends the first session that was begun, without the knowledge of the node that uses it.
    pub async fn end_first_session(&self) -> Result<()> {
        let id = self.session_ids()?.into_iter().next().context("no session was begun")?;
        let request = reqwest::Client::new().delete(self.url()).header("Mcp-Session-Id", id);
        ensure!(request.send().await?.status().is_success(), "it is not ended");
        Ok(())
    }
}
