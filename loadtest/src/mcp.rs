//! The part of MCP that a load needs: a session, calls of one tool, streams that are resumed.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;

use crate::wire::{Event, Events, Head, Wire};

/// The revision that `initialize` requests. A server may answer with an older one.
const REVISION: &str = "2025-11-25";

/// The longest time for a call that is answered with a stream. After it, the call has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The address and path of a server.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    /// The value of the header `Host`.
    host: String,
    path: String,
    /// The header line with the key of the client, if it has one.
    authorization: String,
}

impl Endpoint {
    /// Parses `http://host:port/path`, or `http://KEY@host:port/path` for an endpoint that needs a key.
    pub(crate) fn parse(url: &str) -> anyhow::Result<Self> {
        let rest = url.strip_prefix("http://").context("the URL must begin with http://")?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (authorization, host) = match host.split_once('@') {
            Some((key, host)) => (format!("Authorization: Bearer {key}\r\n"), host),
            None => (String::new(), host),
        };
        let named = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
        let address = named.to_socket_addrs()?.next().context("the URL's host has no address")?;
        Ok(Self { address, host: host.to_owned(), path: format!("/{path}"), authorization })
    }
}

/// Writes the URL, without a key.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.host, self.path)
    }
}

/// A tool to call: its name, and the arguments as JSON.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// A session, or the use of a server without sessions.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    endpoint: Endpoint,
    /// The header lines that identify the session, each with its line end.
    named: String,
    next_id: u64,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Called {
    /// The number of progress notifications before the final response.
    pub(crate) events: u64,
    /// Whether the final response is a result of the tool, not an error.
    pub(crate) is_result: bool,
}

impl Session {
    /// Opens a session with the two POSTs of the handshake.
    pub(crate) async fn open(endpoint: &Endpoint, wire: &mut Wire) -> anyhow::Result<Self> {
        let mut session = Self::none(endpoint);
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{{"protocolVersion":"{REVISION}","capabilities":{{}},"clientInfo":{{"name":"loadtest","version":"1"}}}}}}"#
        );
        wire.send(session.post(&body).as_bytes()).await?;
        let head = wire.head().await?;
        ensure!(head.status == 200, "`initialize` was answered {}", head.status);
        let answer = whole(wire, &head).await?;
        let revision = text_of(&answer, "protocolVersion").unwrap_or_else(|| REVISION.to_owned());
        session.named = format!("MCP-Protocol-Version: {revision}\r\n");
        if let Some(id) = &head.session {
            session.named += &format!("Mcp-Session-Id: {id}\r\n");
        }
        let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        wire.send(session.post(initialized).as_bytes()).await?;
        let head = wire.head().await?;
        wire.body(&head).await?;
        ensure!(head.status == 202 || head.status == 200, "`initialized`: {}", head.status);
        Ok(session)
    }

    /// For calls without a session, to a server that does not implement MCP.
    pub(crate) fn none(endpoint: &Endpoint) -> Self {
        Self { endpoint: endpoint.clone(), named: String::new(), next_id: 1 }
    }

    /// The same session at another endpoint.
    pub(crate) fn at(&self, endpoint: &Endpoint) -> Self {
        Self { endpoint: endpoint.clone(), ..self.clone() }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// A complete POST request with this body.
    pub(crate) fn post(&self, body: &str) -> String {
        let Endpoint { host, path, authorization, .. } = &self.endpoint;
        format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}Content-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{}Content-Length: {}\r\n\r\n{body}",
            self.named,
            body.len()
        )
    }

    /// A complete GET request for a stream: a new one, or one that resumes after an event.
    pub(crate) fn get(&self, after: Option<&str>) -> String {
        let Endpoint { host, path, authorization, .. } = &self.endpoint;
        let after = after.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}Accept: text/event-stream\r\n{}{after}\r\n",
            self.named
        )
    }

    /// The next call of a tool as a complete request, with a progress token if `progress` is set.
    pub(crate) fn call(&mut self, tool: &Tool, progress: bool) -> (u64, String) {
        let id = self.next_id;
        self.next_id += 1;
        let meta =
            if progress { format!(r#","_meta":{{"progressToken":{id}}}"#) } else { String::new() };
        let Tool { name, arguments } = tool;
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{name}","arguments":{arguments}{meta}}}}}"#
        );
        (id, self.post(&body))
    }

    /// Ends the session.
    pub(crate) async fn close(&self, wire: &mut Wire) -> anyhow::Result<()> {
        let Endpoint { host, path, authorization, .. } = &self.endpoint;
        let named = &self.named;
        let request =
            format!("DELETE {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}{named}\r\n");
        wire.send(request.as_bytes()).await?;
        let head = wire.head().await?;
        wire.body(&head).await?;
        Ok(())
    }
}

/// Sends a call and reads its answer, as JSON or as a stream.
pub(crate) async fn call(wire: &mut Wire, request: &str) -> anyhow::Result<Called> {
    let began = Instant::now();
    wire.send(request.as_bytes()).await?;
    let head = wire.head().await?;
    ensure!(head.status == 200, "a call was answered {}", head.status);
    if !head.is_stream {
        let answer = wire.body(&head).await?;
        return Ok(Called { events: 0, is_result: is_result(&answer) });
    }
    let mut events = Events::of(&head);
    let mut called = None;
    let mut count = 0;
    while let Some(event) = wire.event(&mut events).await? {
        ensure!(began.elapsed() < PATIENCE, "a call was not answered");
        if is_final_response(&event) {
            called = Some(Called { events: count, is_result: is_result(&event.data) });
        } else if memchr::memmem::find(&event.data, b"notifications/progress").is_some() {
            count += 1;
        }
    }
    called.context("a stream ended without a final response")
}

/// Reads the message of an answer, as JSON or as a stream.
async fn whole(wire: &mut Wire, head: &Head) -> anyhow::Result<Bytes> {
    if !head.is_stream {
        return wire.body(head).await;
    }
    let mut events = Events::of(head);
    let mut message = None;
    while let Some(event) = wire.event(&mut events).await? {
        if !event.data.is_empty() {
            message = Some(event.data);
        }
    }
    match message {
        Some(message) => Ok(message),
        None => bail!("a stream ended without a message"),
    }
}

/// Whether the event is the response to a request. Only a request or a notification has a
/// member `method`.
pub(crate) fn is_final_response(event: &Event) -> bool {
    !event.data.is_empty() && memchr::memmem::find(&event.data, b"\"method\"").is_none()
}

/// Whether the answer is a result. A server that does not implement MCP echoes the call,
/// which counts as a result.
fn is_result(answer: &[u8]) -> bool {
    let has = |text: &[u8]| memchr::memmem::find(answer, text).is_some();
    (has(b"\"result\"") && !has(b"\"isError\":true") && !has(b"\"isError\": true"))
        || has(b"\"params\"")
}

/// The text member `name` of the result of a JSON-RPC response.
fn text_of(json: &[u8], name: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(json).ok()?;
    value.pointer(&format!("/result/{name}"))?.as_str().map(str::to_owned)
}

/// The source address of a connection. Each address has its own range of ports.
pub(crate) fn source(number: usize) -> Option<IpAddr> {
    // An address has 28,000 ephemeral ports. Other programs need some of them.
    let block = u8::try_from(number / 20_000).ok()?;
    (block > 0).then(|| IpAddr::from([127, 0, 0, 1 + block]))
}
