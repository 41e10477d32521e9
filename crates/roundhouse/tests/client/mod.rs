//! A minimal client of Streamable HTTP for these tests.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// One session.
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
    session: String,
    /// The server's `serverInfo`.
    pub(crate) server: Value,
}

impl Client {
    /// Does the handshake.
    pub(crate) async fn initialize(url: &str) -> Result<Self> {
        let (http, url) = (reqwest::Client::new(), url.to_owned());
        let (session, server) = (String::new(), Value::Null);
        let mut client = Self { http, url, session, server };
        let info = json!({ "name": "test", "version": "0" });
        let params =
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
        let response = client.post(&request("initialize", params)).await?;
        let session = response.headers().get("mcp-session-id").context("no session id")?;
        client.session = session.to_str()?.to_owned();
        client.server = result(response).await?["serverInfo"].take();
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        let status = client.post(&initialized).await?.status();
        ensure!(status == 202, "initialized was answered {status}");
        Ok(client)
    }

    /// The same session at another endpoint.
    pub(crate) fn at(&self, url: &str) -> Self {
        let (http, session) = (self.http.clone(), self.session.clone());
        Self { http, url: url.to_owned(), session, server: Value::Null }
    }

    /// One request and its result.
    pub(crate) async fn call(&self, method: &str, params: Value) -> Result<Value> {
        result(self.post(&request(method, params)).await?).await
    }

    async fn post(&self, message: &Value) -> Result<reqwest::Response> {
        let request = self.http.post(&self.url).json(message);
        let request = request.header("accept", "application/json, text/event-stream");
        let request = match self.session.as_str() {
            "" => request,
            session => request.header("mcp-session-id", session),
        };
        Ok(request.send().await?)
    }
}

fn request(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
}

async fn result(response: reqwest::Response) -> Result<Value> {
    let status = response.status();
    let text = response.text().await?;
    // A JSON answer is one line that begins with a brace; in a stream it follows `data:`.
    let mut lines = text.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
    let message = lines.rfind(|line| line.starts_with('{'));
    let mut message: Value = serde_json::from_str(message.context(format!("{status}: {text}"))?)?;
    if let Some(error) = message.get("error") {
        bail!("{status}: {error}");
    }
    Ok(message["result"].take())
}
