//! Checks that many tests share.

use anyhow::{Result, ensure};
use reqwest::Response;
use serde_json::Value;
use sha2::Digest as _;

/// The id that an error must have.
#[derive(Clone, Debug, PartialEq)]
pub enum Id {
    /// The id could not be read, so the error has none (RPC-06).
    Unread,
    /// The error has this id.
    Of(Value),
    /// The error has any id, or none.
    Any,
}

/// Checks a refusal: an HTTP status, and a JSON-RPC error with a code.
pub async fn refused(response: Response, status: u16, code: i64, id: Id) -> Result<()> {
    let got = response.status().as_u16();
    let text = response.text().await?;
    ensure!(got == status, "expected status {status}, not {got}: {text}");
    let body: Value = serde_json::from_str(&text)?;
    is_error(&body, code, id)
}

/// Checks a JSON-RPC error with a code.
pub fn is_error(body: &Value, code: i64, id: Id) -> Result<()> {
    ensure!(body["jsonrpc"] == "2.0", "not JSON-RPC 2.0: {body}");
    ensure!(body["error"]["code"] == code, "expected error code {code}, not {body}");
    ensure!(body["error"]["message"].is_string(), "an error without a message: {body}");
    ensure!(body.get("result").is_none(), "both error and result: {body}");
    match id {
        Id::Unread => ensure!(body.get("id").is_none(), "an unexpected id: {body}"),
        Id::Of(id) => ensure!(body.get("id") == Some(&id), "expected id {id}: {body}"),
        Id::Any => {}
    }
    Ok(())
}

/// Checks that a message was accepted: status 202 and an empty body.
pub async fn accepted(response: Response) -> Result<()> {
    let status = response.status();
    let text = response.text().await?;
    ensure!(status == 202 && text.is_empty(), "expected an empty 202, not {status}: {text:?}");
    Ok(())
}

/// Checks the status only.
pub fn status(response: &Response, status: u16) -> Result<()> {
    ensure!(response.status() == status, "expected status {status}, not {}", response.status());
    Ok(())
}

/// The value of a header, which must be present.
pub fn header<'a>(response: &'a Response, name: &str) -> Result<&'a str> {
    let value = response.headers().get(name);
    Ok(value.ok_or_else(|| anyhow::anyhow!("no {name} in {:?}", response.headers()))?.to_str()?)
}

/// The SHA-256 of a text, as 64 hexadecimal digits: what the settings have of a key.
pub fn sha256(text: &str) -> String {
    sha2::Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}
