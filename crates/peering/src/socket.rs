//! A TCP connection between two nodes that records how it ended.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{Shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Whether the peer's kernel closed a connection in order. Known once the end of the connection was
/// read.
#[derive(Clone, Debug, Default)]
pub struct OrderlyEnd(Arc<AtomicBool>);

impl OrderlyEnd {
    /// Whether the kernel at the other end closed the connection in order: it was neither reset nor
    /// timed out.
    pub fn was_seen(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A TCP connection.
pub(crate) struct Socket {
    incoming: OwnedReadHalf,
    outgoing: Arc<SocketWriter>,
    orderly_end: OrderlyEnd,
}

/// The write half of a connection, for any thread.
#[derive(Debug)]
pub(crate) struct SocketWriter {
    half: OwnedWriteHalf,
    /// The error that ended writing. The kernel reports an error of the socket once, to the next
    /// write or read. If a write gets the error of a reset, the kernel then reports an orderly end
    /// to the reader.
    failed: Mutex<Option<io::ErrorKind>>,
}

impl Socket {
    /// Sets `TCP_NODELAY`: written bytes are sent at once.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (incoming, outgoing) = stream.into_split();
        let outgoing = Arc::new(SocketWriter { half: outgoing, failed: Mutex::default() });
        Ok(Self { incoming, outgoing, orderly_end: OrderlyEnd::default() })
    }

    /// The write half, for any thread.
    pub(crate) fn writer(&self) -> &Arc<SocketWriter> {
        &self.outgoing
    }

    /// Whether the peer's kernel closed the connection in order, once that is known.
    pub(crate) fn orderly_end(&self) -> &OrderlyEnd {
        &self.orderly_end
    }

    /// Enables TCP keep-alive probes after `idle`.
    pub(crate) fn keep_alive(&self, idle: Duration) -> io::Result<()> {
        let socket = self.incoming.as_ref();
        sockopt::set_socket_keepalive(socket, true)?;
        Ok(sockopt::set_tcp_keepidle(socket, idle)?)
    }

    /// Waits for the first byte that the other end sends, and leaves it in the connection. `None`
    /// if the connection ended.
    pub(crate) async fn first_byte(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let peeked = self.incoming.peek(&mut byte).await?;
        Ok((peeked > 0).then_some(byte[0]))
    }
}

impl SocketWriter {
    /// Writes as many bytes as the socket's buffer takes; `None` if it is full.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        self.noting(|half| half.try_write(bytes))
    }

    fn noting(
        &self,
        write: impl FnOnce(&OwnedWriteHalf) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        // The lock is held during the write, which only copies into the kernel: a reader then sees
        // the error of that write. One thread writes at a time.
        let mut failed = self.failed();
        match write(&self.half) {
            Ok(written) => Ok(Some(written)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => {
                failed.get_or_insert(error.kind());
                Err(error)
            }
        }
    }

    /// Whether the other end closed the connection in order, after the reader got an orderly end.
    /// Otherwise the error of an earlier write.
    fn was_closed(&self) -> io::Result<()> {
        match *self.failed() {
            // The peer closed the connection before the write.
            None | Some(io::ErrorKind::BrokenPipe) => Ok(()),
            Some(kind) => Err(kind.into()),
        }
    }

    fn failed(&self) -> MutexGuard<'_, Option<io::ErrorKind>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ready when the socket is writable. Wakes only the latest caller.
    pub(crate) fn poll_room(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.half.as_ref().poll_write_ready(context)
    }
}

/// Shuts down the connection, even if a thread could still write to its [`SocketWriter`].
impl Drop for Socket {
    fn drop(&mut self) {
        // An error means that the connection has ended already.
        let _ = rustix::net::shutdown(self.incoming.as_ref(), Shutdown::Both);
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let has_room = buffer.remaining() > 0;
        ready!(Pin::new(&mut this.incoming).poll_read(context, buffer))?;
        if has_room && buffer.filled().len() == before {
            this.outgoing.was_closed()?;
            this.orderly_end.0.store(true, Ordering::Release);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.outgoing.poll_room(context))?;
            if let Some(written) = self.outgoing.try_write(bytes)? {
                return Poll::Ready(Ok(written));
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.outgoing.poll_room(context))?;
            let written = self.outgoing.noting(|half| half.try_write_vectored(slices))?;
            if let Some(written) = written {
                return Poll::Ready(Ok(written));
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = rustix::net::shutdown(self.incoming.as_ref(), Shutdown::Write);
        Poll::Ready(ended.map_err(io::Error::from))
    }
}
