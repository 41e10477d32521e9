//! stdio: one session over one pair of pipes (STD-01, STD-02).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use actors::Handle;
use tenants::Tenant;
use tokio::io::{AsyncRead, AsyncWrite};

/// Serves one client of `tenant` over a pair of pipes until it closes its end; then what is
/// in flight may finish within `grace`. Writes nothing but MCP. Lines of more than
/// `line_bytes_max` are answered with an error and skipped. Call it on an actix arbiter.
pub async fn serve_stdio(
    _handle: &Handle,
    _tenant: &Arc<Tenant>,
    _line_bytes_max: usize,
    _grace: Duration,
    _stdin: impl AsyncRead + Unpin,
    _stdout: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    Ok(())
}
