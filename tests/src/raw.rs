//! HTTP requests as bytes, for requests that no HTTP library sends.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The maximum number of bytes that are read from an answer.
const ANSWER_MAX: usize = 1 << 20;

/// The received answer, which may be incomplete.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The status of the first response, if there was one.
    pub status: Option<u16>,
    /// All received bytes, including the head.
    pub text: String,
}

impl Answer {
    /// The number of responses on the connection.
    pub fn responses(&self) -> usize {
        self.text.matches("HTTP/1.1 ").count()
    }
}

/// Sends bytes to `host:port` and reads until the server closes or sends nothing for `quiet`.
pub async fn send(base: &str, bytes: &[u8], quiet: Duration) -> Result<Answer> {
    let address = base.strip_prefix("http://").context("not http")?;
    let mut stream = TcpStream::connect(address).await?;
    let (mut from, mut to) = stream.split();
    let mut got = Vec::new();
    // The server may answer and close the connection before all bytes are written.
    let write = async {
        let _ = to.write_all(bytes).await;
        std::future::pending::<()>().await;
    };
    let read = async {
        let mut piece = [0; 4096];
        while got.len() < ANSWER_MAX {
            match tokio::time::timeout(quiet, from.read(&mut piece)).await {
                Ok(Ok(length)) if length > 0 => got.extend_from_slice(&piece[..length]),
                _ => break,
            }
        }
    };
    tokio::select! { () = write => {}, () = read => {} }
    let text = String::from_utf8_lossy(&got).into_owned();
    let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    Ok(Answer { status, text })
}
