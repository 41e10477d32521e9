//! Judgements that many tests share.

use anyhow::{Result, ensure};
use reqwest::Response;
use serde_json::Value;

/// Whether an error names the id of its request.
#[derive(Clone, Debug, PartialEq)]
pub enum Id {
    /// The id could not be read, so the error has none (RPC-06).
    Unread,
    /// This one.
    Of(Value),
    /// Either way.
    Any,
}

/// A refusal: a status, and a JSON-RPC error with a code.
pub async fn refused(response: Response, status: u16, code: i64, id: Id) -> Result<()> {
    let got = response.status().as_u16();
    let text = response.text().await?;
    ensure!(got == status, "{status} was due, not {got}: {text}");
    let body: Value = serde_json::from_str(&text)?;
    is_error(&body, code, id)
}

/// A JSON-RPC error with a code.
pub fn is_error(body: &Value, code: i64, id: Id) -> Result<()> {
    ensure!(body["jsonrpc"] == "2.0", "no JSON-RPC: {body}");
    ensure!(body["error"]["code"] == code, "{code} was due, not {body}");
    ensure!(body["error"]["message"].is_string(), "an error without a message: {body}");
    ensure!(body.get("result").is_none(), "both error and result: {body}");
    match id {
        Id::Unread => ensure!(body.get("id").is_none(), "an id out of nowhere: {body}"),
        Id::Of(id) => ensure!(body.get("id") == Some(&id), "{id} was due: {body}"),
        Id::Any => {}
    }
    Ok(())
}

/// Accepted, with nothing to say.
pub async fn accepted(response: Response) -> Result<()> {
    let status = response.status();
    let text = response.text().await?;
    ensure!(status == 202 && text.is_empty(), "202 and nothing was due, not {status}: {text:?}");
    Ok(())
}

/// Just a status.
pub fn status(response: &Response, status: u16) -> Result<()> {
    ensure!(response.status() == status, "{status} was due, not {}", response.status());
    Ok(())
}

/// A header that is there.
pub fn header<'a>(response: &'a Response, name: &str) -> Result<&'a str> {
    let value = response.headers().get(name);
    Ok(value.ok_or_else(|| anyhow::anyhow!("no {name} in {:?}", response.headers()))?.to_str()?)
}
