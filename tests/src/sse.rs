//! Reads server-sent events from a response, block by block, as they are on the wire.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::BytesMut;
use serde_json::Value;

/// How long a test waits for an expected event.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One block of a stream: everything up to an empty line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// The `id:` field.
    pub id: Option<String>,
    /// The `event:` field.
    pub event: Option<String>,
    /// The `retry:` field.
    pub retry: Option<u64>,
    /// The `data:` lines, joined; an empty `data:` is an empty text, not `None`.
    pub data: Option<String>,
    /// Comment lines.
    pub comments: Vec<String>,
}

impl Block {
    /// The JSON of the data, if there is any.
    pub fn message(&self) -> Option<Value> {
        self.data.as_deref().filter(|data| !data.is_empty()).map(|data| {
            serde_json::from_str(data).unwrap_or_else(|error| panic!("no JSON: {error}: {data}"))
        })
    }

    /// Whether the block has only comments, which keep the connection open.
    pub fn is_comment(&self) -> bool {
        self.id.is_none() && self.event.is_none() && self.retry.is_none() && self.data.is_none()
    }
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The body was complete.
    Proper,
    /// The connection closed before the end of the body.
    Cut,
}

/// An open SSE response.
#[derive(Debug)]
pub struct Events {
    response: reqwest::Response,
    buffer: BytesMut,
    /// How much of the buffer was already searched for the end of a block.
    scanned: usize,
    /// How the stream ended, once it has ended.
    pub end: Option<End>,
}

impl Events {
    /// Reads the body of a response, which must be 200 and SSE.
    pub fn of(response: reqwest::Response) -> Result<Self> {
        ensure!(response.status() == 200, "not a stream: {}", response.status());
        let kind = response.headers().get("content-type").context("no content type")?;
        ensure!(kind.to_str()?.starts_with("text/event-stream"), "not a stream: {kind:?}");
        Ok(Self { response, buffer: BytesMut::new(), scanned: 0, end: None })
    }

    /// The headers of the response.
    pub fn headers(&self) -> &reqwest::header::HeaderMap {
        self.response.headers()
    }

    /// The next block; `None` once the stream has ended.
    pub async fn next(&mut self) -> Result<Option<Block>> {
        self.next_within(PATIENCE).await?.context("no block came in time")
    }

    /// The next block; `None` if none came within a time.
    pub async fn next_within(&mut self, time: Duration) -> Result<Option<Option<Block>>> {
        match tokio::time::timeout(time, self.read_block()).await {
            Ok(block) => block.map(Some),
            Err(_) => Ok(None),
        }
    }

    async fn read_block(&mut self) -> Result<Option<Block>> {
        loop {
            let unscanned = &self.buffer[self.scanned..];
            if let Some(end) = unscanned.windows(2).position(|pair| pair == b"\n\n") {
                let text = self.buffer.split_to(self.scanned + end + 2);
                self.scanned = 0;
                return parse(std::str::from_utf8(&text)?).map(Some);
            }
            self.scanned = self.buffer.len().saturating_sub(1);
            match self.response.chunk().await {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) => {
                    ensure!(self.buffer.is_empty(), "the stream ends within a block");
                    self.end = Some(End::Proper);
                    return Ok(None);
                }
                Err(_) => {
                    self.end = Some(End::Cut);
                    return Ok(None);
                }
            }
        }
    }

    /// The next block with a message.
    pub async fn message(&mut self) -> Result<Option<(Block, Value)>> {
        while let Some(block) = self.next().await? {
            if let Some(message) = block.message() {
                return Ok(Some((block, message)));
            }
        }
        Ok(None)
    }

    /// All blocks up to the end of the stream, without comments.
    pub async fn rest(&mut self) -> Result<Vec<Block>> {
        let mut blocks = Vec::new();
        while let Some(block) = self.next().await? {
            if !block.is_comment() {
                blocks.push(block);
            }
        }
        Ok(blocks)
    }

    /// Whether no message comes within a time. Comments do not count.
    pub async fn is_quiet_for(&mut self, time: Duration) -> Result<bool> {
        let until = tokio::time::Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            match self.next_within(left).await? {
                None => return Ok(true),
                Some(Some(block)) if block.message().is_none() => {}
                Some(_) => return Ok(false),
            }
        }
    }
}

fn parse(text: &str) -> Result<Block> {
    let mut block = Block::default();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix(':') {
            block.comments.push(comment.to_owned());
            continue;
        }
        // Strict readers end the stream at a line without a colon, so a node must never write one.
        let (field, value) = line.split_once(':').with_context(|| format!("no colon: {line}"))?;
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => block.id = Some(value.to_owned()),
            "event" => block.event = Some(value.to_owned()),
            "retry" => block.retry = Some(value.parse()?),
            "data" => match &mut block.data {
                None => block.data = Some(value.to_owned()),
                Some(data) => *data += &format!("\n{value}"),
            },
            other => bail!("an unknown field: {other}"),
        }
    }
    Ok(block)
}
