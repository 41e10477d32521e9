//! What carries HTTP to a client: TCP, or TLS over it.
//!
//! The types of a connection are generic over it, so that a listener without TLS has no trace of TLS.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// What carries HTTP to a client.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + 'static {
    /// Whether [`Self::is_in_handshake`] can be true.
    const HAS_HANDSHAKE: bool;

    /// Whether a part of a handshake has arrived, and the handshake is not complete. `poll_read`
    /// performs it.
    fn is_in_handshake(&self) -> bool {
        false
    }

    /// Writes an answer to a connection that is about to be closed. What does not fit into the
    /// kernel's buffer is not waited for.
    fn write_last(&mut self, answer: &[u8]);
}

impl Transport for TcpStream {
    const HAS_HANDSHAKE: bool = false;

    fn write_last(&mut self, answer: &[u8]) {
        let _ = self.try_write(answer);
    }
}
