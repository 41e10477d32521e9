//! A server of the TypeScript SDK that is reached over HTTP.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::sse::PATIENCE;
use crate::tools;

/// `@modelcontextprotocol/server-everything` with a transport of its own. Dropping it kills this process
/// only.
#[derive(Debug)]
pub struct Everything {
    child: Child,
    port: u16,
    printed: tempfile::NamedTempFile,
}

impl Everything {
    /// Starts it at this port, with `streamableHttp` or `sse`.
    pub async fn start(port: u16, transport: &str) -> Result<Self> {
        let script = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
        let printed = tempfile::NamedTempFile::new()?;
        let mut command = Command::new(tools::node());
        command.arg(tools::installed(script)).arg(transport).env("PORT", port.to_string());
        command.stdin(Stdio::null()).stdout(printed.reopen()?).stderr(Stdio::null());
        let server = Self { child: command.spawn()?, port, printed };
        let until = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < until, "the server does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(server)
    }

    /// Where its Streamable HTTP is.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    /// The lines that it printed.
    pub fn lines(&self) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(self.printed.path())?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The ids of the sessions that were begun.
    pub fn session_ids(&self) -> Result<Vec<String>> {
        let lines = self.lines()?;
        let ids =
            lines.iter().filter_map(|line| line.strip_prefix("Session initialized with ID: "));
        Ok(ids.map(str::to_owned).collect())
    }
}

impl Drop for Everything {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
