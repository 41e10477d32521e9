//! A client that costs little: one request at a time on each of a few connections kept open.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What is called.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: String,
    /// Is it a node, where a session comes first?
    pub(crate) is_node: bool,
}

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"The quick brown fox jumps over the lazy dog","number":42,"list":[1,2,3]}}}"#;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"loadtest","version":"1"}}}"#;

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Calls for as long as `time` lasts, and returns how many calls were answered.
pub(crate) async fn call(
    target: &Target,
    connections: usize,
    time: Duration,
) -> anyhow::Result<u64> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..connections {
        let target = target.clone();
        tasks.spawn(async move { call_on_one(&target, time).await });
    }
    let mut calls = 0;
    while let Some(called) = tasks.join_next().await {
        calls += called??;
    }
    Ok(calls)
}

async fn call_on_one(target: &Target, time: Duration) -> anyhow::Result<u64> {
    let stream = TcpStream::connect(&target.address).await?;
    stream.set_nodelay(true)?;
    let mut connection = Connection { stream, buffer: vec![0; 16 << 10] };
    let path = if target.is_node { "/echo/mcp" } else { "/" };
    let session = if target.is_node { Some(connection.begin(path).await?) } else { None };
    let request = request("POST", path, session.as_deref(), CALL);
    let until = Instant::now() + time;
    let mut calls = 0;
    while Instant::now() < until {
        connection.stream.write_all(request.as_bytes()).await?;
        let head = connection.read().await?;
        ensure!(head.starts_with("HTTP/1.1 200"), "a call was answered {head}");
        calls += 1;
    }
    if let Some(session) = session {
        let end = self::request("DELETE", path, Some(&session), "");
        connection.stream.write_all(end.as_bytes()).await?;
        connection.read().await?;
    }
    Ok(calls)
}

fn request(method: &str, path: &str, session: Option<&str>, body: &str) -> String {
    let session =
        session.map(|id| format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n"));
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Accept: application/json, text/event-stream\r\n{}Content-Length: {}\r\n\r\n{body}",
        session.unwrap_or_default(),
        body.len()
    )
}

struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Begins a session and returns its id.
    async fn begin(&mut self, path: &str) -> anyhow::Result<String> {
        self.stream.write_all(request("POST", path, None, INITIALIZE).as_bytes()).await?;
        let head = self.read().await?;
        let session = head
            .lines()
            .filter_map(|line| line.split_once(": "))
            .find(|(name, _)| name.eq_ignore_ascii_case("mcp-session-id"))
            .context("the answer to `initialize` names no session")?
            .1
            .to_owned();
        let initialized = request("POST", path, Some(&session), INITIALIZED);
        self.stream.write_all(initialized.as_bytes()).await?;
        self.read().await?;
        Ok(session)
    }

    /// Reads one response and returns its head.
    async fn read(&mut self) -> anyhow::Result<String> {
        let mut filled = 0;
        loop {
            ensure!(filled < self.buffer.len(), "a response is larger than the buffer");
            let read = self.stream.read(&mut self.buffer[filled..]).await?;
            if read == 0 {
                bail!("the server closed the connection");
            }
            filled += read;
            let text = &self.buffer[..filled];
            let Some(end) = text.windows(4).position(|window| window == b"\r\n\r\n") else {
                continue;
            };
            let head = std::str::from_utf8(&text[..end])?;
            let length = head
                .lines()
                .filter_map(|line| line.split_once(": "))
                .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
                .map_or(Ok(0), |(_, length)| length.parse::<usize>())?;
            if filled >= end + 4 + length {
                return Ok(head.to_owned());
            }
        }
    }
}
