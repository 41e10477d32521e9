//! Servers from npm and PyPI, unchanged, in their own Streamable HTTP mode. `tests/setup` installs them.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::nodes::port;
use crate::sse::PATIENCE;
use crate::tools;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `@modelcontextprotocol/server-everything`, on the TypeScript SDK 1.x: sessions, streams with event ids,
    /// requests to the client.
    Everything,
    /// `@modelcontextprotocol/server-budget-allocator`, on the TypeScript SDK 2.x: no sessions, a `ui://` resource.
    Budget,
    /// `@playwright/mcp`, without a browser: each of its tools fails.
    Playwright,
    /// `@playwright/mcp` with the Chromium that `tests/setup --full` installs.
    Browser,
    /// `mcp-server-motherduck`, on FastMCP: SQL in a DuckDB in memory.
    DuckDb,
    /// `excel-mcp-server`, on the Python SDK 2.x: workbooks in a folder of its own.
    Excel,
}

impl Kind {
    /// The five that `tests/setup` installs.
    pub const ALL: [Self; 5] =
        [Self::Everything, Self::Budget, Self::Playwright, Self::DuckDb, Self::Excel];

    /// A name for the backend.
    pub fn name(self) -> &'static str {
        match self {
            Self::Everything => "everything",
            Self::Budget => "budget",
            Self::Playwright => "playwright",
            Self::Browser => "browser",
            Self::DuckDb => "duckdb",
            Self::Excel => "excel",
        }
    }

    /// The command that serves `/mcp` at a port of loopback, with files in a folder.
    fn command(self, port: u16, folder: &str) -> Command {
        let number = port.to_string();
        let of_npm = |script: &str| {
            let mut command = Command::new(tools::node());
            command.arg(tools::installed(&format!("node_modules/{script}")));
            command
        };
        let of_pypi = |program: &str| {
            let mut command =
                Command::new(tools::installed(&format!("servers-http/bin/{program}")));
            command.env("HOME", folder);
            command
        };
        let at = ["--host", "127.0.0.1", "--port", &number];
        let mut command;
        match self {
            Self::Everything => {
                command = of_npm("@modelcontextprotocol/server-everything/dist/index.js");
                command.arg("streamableHttp").env("PORT", &number);
            }
            Self::Budget => {
                command = of_npm("@modelcontextprotocol/server-budget-allocator/dist/index.js");
                command.env("PORT", &number);
            }
            Self::Playwright | Self::Browser => {
                let is_there = self == Self::Browser;
                let browser = if is_there { "/usr/bin/chromium" } else { "/no/browser" };
                command = of_npm("@playwright/mcp/cli.js");
                command.args(at).args(["--allowed-hosts", &format!("127.0.0.1:{port}")]);
                command.args(["--headless", "--isolated", "--no-sandbox"]);
                command.args(["--executable-path", browser]).env("HOME", folder);
                // It writes files into the folder in which it runs.
                command.current_dir(folder);
            }
            Self::DuckDb => {
                command = of_pypi("mcp-server-motherduck");
                command.args(["--transport", "http"]).args(at);
                command.args(["--db-path", ":memory:", "--read-write"]);
            }
            Self::Excel => {
                command = of_pypi("excel-mcp-server");
                command.arg("streamable-http").args(at).args(["--allow-dir", folder]);
            }
        }
        command
    }
}

/// A running server. Dropping it kills this process only.
#[derive(Debug)]
pub struct HttpServer {
    child: Child,
    port: u16,
    printed: tempfile::NamedTempFile,
    _folder: tempfile::TempDir,
}

impl HttpServer {
    /// Starts a server at a port that only this process uses.
    pub async fn start(kind: Kind) -> Result<Self> {
        Self::start_at(kind, port()?).await
    }

    /// Starts a server at this port.
    pub async fn start_at(kind: Kind, port: u16) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let command = kind.command(port, &folder.path().display().to_string());
        Self::run(command, port, folder).await
    }

    /// Starts all servers at the same time, in the order of [`Kind::ALL`].
    pub async fn start_all() -> Result<Vec<Self>> {
        let starting = Kind::ALL.map(|kind| tokio::spawn(Self::start(kind)));
        let mut servers = Vec::new();
        for server in starting {
            servers.push(server.await??);
        }
        Ok(servers)
    }

    /// Runs a command until it listens at the port.
    pub(crate) async fn run(
        mut command: Command,
        port: u16,
        folder: tempfile::TempDir,
    ) -> Result<Self> {
        let printed = tempfile::NamedTempFile::new()?;
        let output = printed.reopen()?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn()?;
        let server = Self { child, port, printed, _folder: folder };
        let until = Instant::now() + PATIENCE * 2;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < until, "the server does not listen: {:?}", server.lines()?);
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
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
