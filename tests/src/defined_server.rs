//! A server whose tools, prompts and instructions a test changes, as a program and over HTTP.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::sse::PATIENCE;
use crate::tools;

/// The server. Dropping it kills the process that serves over HTTP.
#[derive(Debug)]
pub struct DefinedServer {
    folder: tempfile::TempDir,
    port: u16,
    _process: Child,
}

impl DefinedServer {
    /// Starts it, with these descriptions of tools by name.
    pub async fn start(tools: &[(&str, &str)]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("defined.json");
        let mut command = Command::new("python3");
        command.arg(script()).arg(&file).arg("http");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn()?;
        let mut lines = BufReader::new(process.stdout.take().context("no stdout")?).lines();
        let port = tokio::time::timeout(PATIENCE, lines.next_line()).await??;
        let port = port.context("the server has ended")?.parse()?;
        let server = Self { folder, port, _process: process };
        server.define("Use it.", tools)?;
        Ok(server)
    }

    /// Gives it these instructions and descriptions of tools, and one prompt.
    pub fn define(&self, instructions: &str, tools: &[(&str, &str)]) -> Result<()> {
        let tool = |(name, description): &(&str, &str)| json!({ "name": name, "description": description, "inputSchema": { "type": "object" } });
        let tools: Vec<Value> = tools.iter().map(tool).collect();
        let prompts = json!([{ "name": "ask", "description": "Asks." }]);
        let defined = json!({ "instructions": instructions, "tools": tools, "prompts": prompts });
        let (file, new) = (self.file(), self.file().with_extension("new"));
        std::fs::write(&new, defined.to_string())?;
        Ok(std::fs::rename(new, file)?)
    }

    /// The keys of a backend that runs it as a program.
    pub fn program(&self) -> String {
        let (script, file) = (script().display().to_string(), self.file().display().to_string());
        format!(
            "kind = \"stdio\"\ncommand = \"python3\"\nargs = [{script:?}, {file:?}]\nsandbox = \"none\"\n"
        )
    }

    /// The keys of a backend that reaches it over HTTP.
    pub fn remote(&self) -> String {
        let url = format!("http://127.0.0.1:{}/mcp", self.port);
        format!("kind = \"http\"\nurl = \"{url}\"\nallow_networks = [\"127.0.0.0/8\"]\n")
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("defined.json")
    }
}

fn script() -> PathBuf {
    tools::root().join("tests/servers/defined.py")
}
