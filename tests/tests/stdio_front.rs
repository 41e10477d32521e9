//! The stdio front: a tenant over the standard streams of one process.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tests::sse::PATIENCE;
use tests::{processes, tools};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

// holds: STD-01, STD-02
#[tokio::test]
async fn a_tenant_is_served_over_standard_streams_and_nothing_else_is_written() -> Result<()> {
    for revision in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let mut pipe = Pipe::open()?;
        let welcome = pipe.initialize(revision, json!({})).await?;
        ensure!(welcome["result"]["protocolVersion"] == revision, "{welcome}");
        let list = pipe.request(json!(2), "tools/list", json!({})).await?;
        ensure!(list["result"]["tools"][0]["name"] == "test_simple_text", "{list}");
        let params =
            json!({"name": "rh_count", "arguments": {"n": 3}, "_meta": {"progressToken": "p"}});
        pipe.say(&json!({"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": params}))
            .await?;
        let mut steps = Vec::new();
        loop {
            let message = pipe.hear().await?;
            steps.extend(message["params"]["progress"].as_f64());
            if message["id"] == "c" {
                break;
            }
        }
        ensure!(steps == [1.0, 2.0, 3.0], "{steps:?}");
        pipe.closes().await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_server_asks_its_client_over_the_same_pipe() -> Result<()> {
    let mut pipe = Pipe::open()?;
    pipe.initialize("2025-11-25", json!({"sampling": {}})).await?;
    let params = json!({"name": "test_sampling", "arguments": {"prompt": "?"}});
    pipe.say(&json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params})).await?;
    let question = pipe.hear().await?;
    ensure!(question["method"] == "sampling/createMessage", "{question}");
    let content = json!({"type": "text", "text": "forty-two"});
    let result = json!({"role": "assistant", "model": "m", "content": content});
    pipe.say(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result})).await?;
    let word = pipe.hear().await?;
    ensure!(word["result"]["content"][0]["text"] == "LLM response: forty-two", "{word}");
    pipe.closes().await
}

// holds: STD-01, RPC-06
#[tokio::test]
async fn a_line_that_is_no_message_is_answered_and_the_next_one_counts() -> Result<()> {
    let mut pipe = Pipe::open()?;
    pipe.initialize("2025-11-25", json!({})).await?;
    for (line, code) in [
        (&b"{bad\n"[..], -32700),
        (b"\xff\xfe\n", -32700),
        (b"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}\n", -32600),
        (b"[]\n", -32600),
    ] {
        pipe.write(line).await?;
        let error = pipe.hear().await?;
        ensure!(error["error"]["code"] == code, "{error}");
        ensure!(code != -32700 || error.get("id").is_none(), "{error}");
    }
    pipe.write(b"\r\n\n").await?;
    pipe.write(b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}\r\n").await?;
    let pong = pipe.hear().await?;
    ensure!(pong == json!({"jsonrpc": "2.0", "id": 7, "result": {}}), "{pong}");
    pipe.closes().await
}

// holds: STD-07
#[tokio::test]
async fn a_batch_on_a_line_is_read_where_it_was_negotiated() -> Result<()> {
    let mut pipe = Pipe::open()?;
    pipe.initialize("2025-03-26", json!({})).await?;
    pipe.say(&json!([
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/list"},
    ]))
    .await?;
    let mut ids = vec![pipe.hear().await?["id"].clone(), pipe.hear().await?["id"].clone()];
    ids.sort_by_key(ToString::to_string);
    ensure!(ids == [json!(2), json!(3)], "{ids:?}");
    pipe.closes().await
}

// holds: STD-04
#[tokio::test]
async fn closing_the_pipe_ends_the_process_and_its_server() -> Result<()> {
    let mark = processes::mark();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("roundhouse.toml");
    let config = format!(
        "[tenants.acme]\nauth = \"open\"\n[tenants.acme.backends.it]\nkind = \"stdio\"\ncommand = {:?}\n\
         env = {{ {} = {mark:?} }}\n",
        tools::built("everything").display().to_string(),
        processes::VARIABLE,
    );
    std::fs::write(&file, config)?;
    let file = file.to_str().context("not UTF-8")?;
    let mut pipe = Pipe::start(&["--tenant", "acme", "--config", file])?;
    pipe.initialize("2025-11-25", json!({})).await?;
    ensure!(!processes::marked(&mark, None).is_empty());
    pipe.closes().await?;
    processes::all_gone(&mark, None, Duration::from_secs(15)).await
}

#[tokio::test]
async fn an_unknown_tenant_is_said_on_stderr() -> Result<()> {
    let mut command = Command::new(tools::built("roundhouse"));
    let output =
        command.args(["stdio", "--tenant", "nobody"]).stdin(Stdio::null()).output().await?;
    ensure!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stderr)?;
    ensure!(said.contains("nobody") && said.contains("demo"), "{said}");
    Ok(())
}

/// A client at the other end of the pipes.
struct Pipe {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Pipe {
    /// The built-in demo.
    fn open() -> Result<Self> {
        Self::start(&["--tenant", "demo"])
    }

    fn start(args: &[&str]) -> Result<Self> {
        let mut command = Command::new(tools::built("roundhouse"));
        command.arg("stdio").args(args).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        Ok(Self { child, stdin, lines })
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let stdin = self.stdin.as_mut().context("closed")?;
        stdin.write_all(bytes).await?;
        Ok(stdin.flush().await?)
    }

    async fn say(&mut self, message: &Value) -> Result<()> {
        self.write(format!("{message}\n").as_bytes()).await
    }

    /// The next line, which must be a JSON-RPC message.
    async fn hear(&mut self) -> Result<Value> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        let line = line.context("nothing came")??.context("stdout ended")?;
        let message: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        ensure!(message["jsonrpc"] == "2.0", "{line}");
        Ok(message)
    }

    async fn request(&mut self, id: Value, method: &str, params: Value) -> Result<Value> {
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await?;
        let word = self.hear().await?;
        ensure!(word["id"] == id, "{word}");
        Ok(word)
    }

    async fn initialize(&mut self, revision: &str, capabilities: Value) -> Result<Value> {
        let params = json!({"protocolVersion": revision, "capabilities": capabilities,
            "clientInfo": {"name": "scenarios", "version": "1"}});
        let word = self.request(json!(1), "initialize", params).await?;
        self.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await?;
        Ok(word)
    }

    /// Closes the pipe: the process ends with success, without further output.
    async fn closes(mut self) -> Result<()> {
        self.stdin = None;
        let mut rest = String::new();
        let mut stdout = self.lines.into_inner();
        tokio::time::timeout(PATIENCE, stdout.read_to_string(&mut rest)).await??;
        ensure!(rest.is_empty(), "{rest}");
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await??;
        ensure!(status.success(), "{status}");
        Ok(())
    }
}
