//! A mock of a collector of OpenTelemetry: it accepts what it is sent, and reads none of it.

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;

/// Starts it on this runtime, and returns its URL. Its CPU time counts as that of the node.
pub(crate) async fn start() -> anyhow::Result<String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let accepts = Router::new().fallback(|_body: Bytes| async { StatusCode::OK });
    tokio::spawn(async move { axum::serve(listener, accepts).await });
    Ok(url)
}
