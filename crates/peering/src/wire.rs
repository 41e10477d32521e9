//! A connection between two nodes, plain or encrypted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::encrypted::{Encrypted, EncryptedWriter};
use crate::socket::{OrderlyEnd, Socket, SocketWriter};

/// A plain or encrypted connection.
pub(crate) enum Wire {
    Plain(Socket),
    Tls(Box<Encrypted>),
}

/// The write half of a connection, for any thread. One thread writes at a time.
#[derive(Clone)]
pub(crate) enum Outgoing {
    Plain(Arc<SocketWriter>),
    Tls(Arc<EncryptedWriter>),
}

/// The outcome of an attempt to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The connection has taken this many bytes.
    Bytes(usize),
    /// The socket's buffer is full.
    Full,
    /// The connection's task decrypts at this moment. It writes afterwards.
    Busy,
}

impl Outgoing {
    /// Writes as many bytes as the connection takes. Never waits.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<Written> {
        match self {
            Self::Plain(writer) => {
                Ok(writer.try_write(bytes)?.map_or(Written::Full, Written::Bytes))
            }
            Self::Tls(writer) => writer.try_write(bytes),
        }
    }

    /// Sends the encrypted bytes that are left. Returns whether the socket has taken all of them.
    pub(crate) fn try_flush(&self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
            Self::Tls(writer) => writer.try_flush(),
        }
    }

    /// Ready when the socket is writable. Wakes only the latest caller.
    pub(crate) fn poll_room(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(writer) => writer.poll_room(context),
            Self::Tls(writer) => writer.poll_room(context),
        }
    }
}

impl Wire {
    /// The write half, for any thread with frames to write.
    pub(crate) fn outgoing(&self) -> Outgoing {
        match self {
            Self::Plain(socket) => Outgoing::Plain(socket.writer().clone()),
            Self::Tls(encrypted) => Outgoing::Tls(encrypted.writer().clone()),
        }
    }

    /// Enables TCP keep-alive probes after `idle`.
    pub(crate) fn keep_alive(&self, idle: Duration) -> io::Result<()> {
        self.socket().keep_alive(idle)
    }

    /// Whether the peer's kernel closed the connection in order, once that is known.
    pub(crate) fn orderly_end(&self) -> &OrderlyEnd {
        self.socket().orderly_end()
    }

    fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(encrypted) => encrypted.socket(),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Tls(encrypted) => Pin::new(&mut **encrypted).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outgoing = self.outgoing();
        loop {
            ready!(outgoing.poll_room(context))?;
            if let Written::Bytes(written) = outgoing.try_write(bytes)? {
                return Poll::Ready(Ok(written));
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outgoing = self.outgoing();
        while !outgoing.try_flush()? {
            ready!(outgoing.poll_room(context))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // No end of the TLS session is sent: the last frame of a link is a goodbye.
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(encrypted) => encrypted.poll_shutdown(context),
        }
    }
}
