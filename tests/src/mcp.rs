//! A minimal client of one endpoint, which shows the messages as they are on the wire.

use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::sse::{Block, Events};

/// The revisions with Streamable HTTP, oldest first.
pub const REVISIONS: [&str; 4] = ["2025-03-26", "2025-06-18", "2025-11-25", DRAFT];
/// The draft revision with rules for headers.
pub const DRAFT: &str = "DRAFT-2026-v1";

/// A client, with or without a session.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    /// The endpoint.
    pub url: String,
    /// The key that is sent with each request, if the client has one.
    pub key: Option<String>,
    /// The session id, once the client has one.
    pub session: Option<String>,
    /// The revision that was negotiated.
    pub revision: String,
    /// The result of `initialize`.
    pub welcome: Value,
    next: AtomicI64,
}

impl Client {
    /// A client that has sent nothing yet.
    pub fn new(url: impl Into<String>, revision: &str) -> Self {
        Self {
            // No connection pool: a test that cuts connections must not reuse an old connection.
            http: reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a client"),
            url: url.into(),
            key: None,
            session: None,
            revision: revision.to_owned(),
            welcome: Value::Null,
            next: AtomicI64::new(1),
        }
    }

    /// Another client of the same session.
    pub fn twin(&self) -> Self {
        let twin = Self::new(self.url.clone(), &self.revision);
        let (session, key) = (self.session.clone(), self.key.clone());
        Self { session, key, welcome: self.welcome.clone(), ..twin }
    }

    /// The same client, for which this host has the address of the listener at `base`.
    pub fn resolving(self, host: &str, base: &str) -> Result<Self> {
        let address = base.strip_prefix("http://").context("no http URL")?.parse()?;
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).resolve(host, address);
        Ok(Self { http: http.build()?, ..self })
    }

    /// The same client with this key.
    pub fn with_key(self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self }
    }

    /// The same client, which keeps its connection for further requests.
    pub fn keeping_connections(self) -> Self {
        let http = reqwest::Client::builder().build().expect("a client");
        Self { http, ..self }
    }

    /// Opens a session without capabilities.
    pub async fn open(url: impl Into<String>, revision: &str) -> Result<Self> {
        Self::open_with(url, revision, json!({})).await
    }

    /// Opens a session whose client declares these capabilities.
    pub async fn open_with(
        url: impl Into<String>,
        revision: &str,
        capabilities: Value,
    ) -> Result<Self> {
        Self::new(url, revision).opened(capabilities).await
    }

    /// The same client with a session, in which it declares these capabilities.
    pub async fn opened(mut self, capabilities: Value) -> Result<Self> {
        self.initialize(capabilities).await?;
        let response = self.notify("notifications/initialized", json!({})).await?;
        ensure!(response.status() == 202, "initialized got {}", response.status());
        Ok(self)
    }

    /// The first exchange of the handshake.
    pub async fn initialize(&mut self, capabilities: Value) -> Result<()> {
        let params = self.introduction(capabilities);
        let response = self.send(self.message("initialize", params)).await?;
        let status = response.status();
        if status != 200 {
            bail!("initialize got {status}: {}", response.text().await?);
        }
        let session = response.headers().get("mcp-session-id");
        self.session = session.map(|id| id.to_str().map(str::to_owned)).transpose()?;
        self.welcome = result(final_response(response).await?)?;
        self.revision = self.welcome["protocolVersion"].as_str().context("no version")?.to_owned();
        Ok(())
    }

    /// The params of `initialize`.
    pub fn introduction(&self, capabilities: Value) -> Value {
        json!({
            "protocolVersion": self.revision,
            "capabilities": capabilities,
            "clientInfo": {"name": "scenarios", "version": "1"},
        })
    }

    /// A request with an id of its own.
    pub fn message(&self, method: &str, params: Value) -> Value {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    /// A call of a tool, with an id of its own.
    pub fn call(&self, tool: &str, arguments: Value) -> Value {
        self.message("tools/call", json!({"name": tool, "arguments": arguments}))
    }

    /// A call that asks for progress under a token.
    pub fn call_with_progress(&self, tool: &str, arguments: Value, token: Value) -> Value {
        let meta = json!({"progressToken": token});
        self.message("tools/call", json!({"name": tool, "arguments": arguments, "_meta": meta}))
    }

    /// An HTTP request with the headers that a client of the revision sends.
    pub fn http(&self, method: Method) -> RequestBuilder {
        let mut request = self.http.request(method.clone(), &self.url);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        if let Some(session) = &self.session {
            request = request.header("Mcp-Session-Id", session);
            // Revisions before 2025-06-18 do not have this header.
            if self.revision.as_str() > "2025-03-26" {
                request = request.header("MCP-Protocol-Version", &self.revision);
            }
        }
        match method {
            Method::POST => request.header("Accept", "application/json, text/event-stream"),
            Method::GET => request.header("Accept", "text/event-stream"),
            _ => request,
        }
    }

    /// Posts one message, with the headers that mirror it if the revision has them.
    pub async fn send(&self, message: Value) -> Result<Response> {
        let mut request = self.http(Method::POST);
        if self.revision == DRAFT {
            request = request.headers(mirrored(&message)?);
        }
        Ok(request.json(&message).send().await?)
    }

    /// Posts bytes unchanged.
    pub async fn send_bytes(&self, body: impl Into<reqwest::Body>) -> Result<Response> {
        let request = self.http(Method::POST).header("Content-Type", "application/json");
        Ok(request.body(body).send().await?)
    }

    /// Sends a request as it is; returns its final response, a result or an error.
    pub async fn ask(&self, message: Value) -> Result<Value> {
        final_response(self.send(message).await?).await
    }

    /// Sends a request; returns its final response, from a JSON body or a stream.
    pub async fn request(&self, method: &str, params: Value) -> Result<Value> {
        final_response(self.send(self.message(method, params)).await?).await
    }

    /// Calls a tool; returns its result.
    pub async fn tool(&self, tool: &str, arguments: Value) -> Result<Value> {
        result(final_response(self.send(self.call(tool, arguments)).await?).await?)
    }

    /// Posts a request whose answer must be a stream.
    pub async fn stream(&self, message: Value) -> Result<Events> {
        Events::of(self.send(message).await?)
    }

    /// Posts a notification.
    pub async fn notify(&self, method: &str, params: Value) -> Result<Response> {
        self.send(json!({"jsonrpc": "2.0", "method": method, "params": params})).await
    }

    /// Answers a request of the server.
    pub async fn answer(&self, id: &Value, result: Value) -> Result<Response> {
        self.send(json!({"jsonrpc": "2.0", "id": id, "result": result})).await
    }

    /// Sends a GET, to resume after an event or to listen.
    pub async fn get(&self, last_event_id: Option<&str>) -> Result<Response> {
        let mut request = self.http(Method::GET);
        if let Some(id) = last_event_id {
            request = request.header("Last-Event-ID", id);
        }
        Ok(request.send().await?)
    }

    /// Opens the standalone stream.
    pub async fn listen(&self) -> Result<Events> {
        Events::of(self.get(None).await?)
    }

    /// Opens a stream with the events that follow an event on its stream.
    pub async fn resume(&self, last_event_id: &str) -> Result<Events> {
        Events::of(self.get(Some(last_event_id)).await?)
    }

    /// Ends the session.
    pub async fn delete(&self) -> Result<Response> {
        Ok(self.http(Method::DELETE).send().await?)
    }

    /// Checks that the session still answers.
    pub async fn is_well(&self) -> Result<()> {
        let pong = self.request("ping", json!({})).await?;
        ensure!(pong["result"] == json!({}), "ping got {pong}");
        let echo = self.tool("test_simple_text", json!({})).await?;
        ensure!(echo["content"][0]["type"] == "text", "a call got {echo}");
        Ok(())
    }
}

/// The headers that DRAFT-2026-v1 requires.
pub fn mirrored(message: &Value) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    let Some(method) = message["method"].as_str() else { return Ok(headers) };
    headers.insert(HeaderName::from_static("mcp-method"), HeaderValue::from_str(method)?);
    let name = match method {
        "tools/call" | "prompts/get" => message["params"]["name"].as_str(),
        "resources/read" => message["params"]["uri"].as_str(),
        _ => None,
    };
    if let Some(name) = name {
        headers.insert(HeaderName::from_static("mcp-name"), HeaderValue::from_str(name)?);
    }
    Ok(headers)
}

/// The response to a request, from a JSON body or from the end of a stream.
pub async fn final_response(response: Response) -> Result<Value> {
    let status = response.status();
    let kind = response.headers().get("content-type").map(|kind| kind.to_str().map(str::to_owned));
    let kind = kind.transpose()?.unwrap_or_default();
    if kind.starts_with("application/json") {
        return Ok(response.json().await?);
    }
    if !kind.starts_with("text/event-stream") {
        bail!("neither JSON nor SSE but {status} {kind:?}: {}", response.text().await?);
    }
    let mut events = Events::of(response)?;
    while let Some((_, message)) = events.message().await? {
        if is_response(&message) {
            return Ok(message);
        }
    }
    bail!("the stream ended without a response")
}

/// The result of a response.
pub fn result(response: Value) -> Result<Value> {
    match response.get("result") {
        Some(result) => Ok(result.clone()),
        None => bail!("an error: {response}"),
    }
}

/// Whether a message is a response.
pub fn is_response(message: &Value) -> bool {
    message.get("method").is_none()
        && (message.get("result").is_some() || message.get("error").is_some())
}

/// The messages in these blocks.
pub fn messages(blocks: &[Block]) -> Vec<Value> {
    blocks.iter().filter_map(Block::message).collect()
}
