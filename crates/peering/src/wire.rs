//! A connection between two nodes, in the clear or encrypted, that remembers how it ended.

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
use tokio_rustls::TlsStream;

/// Whether the peer's system closed a connection in order; known once its end was read.
#[derive(Clone, Debug, Default)]
pub struct OrderlyEnd(Arc<AtomicBool>);

impl OrderlyEnd {
    /// The system at its other end closed it in order. It was neither reset nor silent.
    pub fn was_seen(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A connection.
pub(crate) struct Socket {
    incoming: OwnedReadHalf,
    outgoing: Arc<Outgoing>,
    orderly_end: OrderlyEnd,
}

/// Where a connection is written to, by whichever thread.
#[derive(Debug)]
pub(crate) struct Outgoing {
    half: OwnedWriteHalf,
    /// Why nothing can be written any more. The kernel reports an error of the socket once, to
    /// the next write or read. If a write gets the error of a reset, the kernel then reports
    /// an orderly end to the reader.
    failed: Mutex<Option<io::ErrorKind>>,
}

/// What bytes go over.
pub(crate) enum Wire {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

impl Socket {
    /// Nothing that is written waits for more.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let (incoming, outgoing) = stream.into_split();
        let outgoing = Arc::new(Outgoing { half: outgoing, failed: Mutex::default() });
        Ok(Self { incoming, outgoing, orderly_end: OrderlyEnd::default() })
    }
}

impl Outgoing {
    /// Writes as much as there is room for: `None` where there is none now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        self.noting(|half| half.try_write(bytes))
    }

    fn noting(
        &self,
        write: impl FnOnce(&OwnedWriteHalf) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        // Held while it is written, for no longer than the system takes to copy: who reads then
        // knows what was told. There is one writer at a time.
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

    /// Did the other end close the connection in order, where the reader was told so? Else
    /// the error that a writer was told.
    fn was_closed(&self) -> io::Result<()> {
        match *self.failed() {
            // It was closed, and then written to.
            None | Some(io::ErrorKind::BrokenPipe) => Ok(()),
            Some(kind) => Err(kind.into()),
        }
    }

    fn failed(&self) -> MutexGuard<'_, Option<io::ErrorKind>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when there is room. Wakes the one who asked last.
    pub(crate) fn poll_room(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.half.as_ref().poll_write_ready(context)
    }
}

impl Wire {
    /// The write half, for any thread with frames to write. `None` where TLS encrypts them.
    pub(crate) fn outgoing(&self) -> Option<Arc<Outgoing>> {
        match self {
            Self::Plain(socket) => Some(socket.outgoing.clone()),
            Self::Tls(_) => None,
        }
    }

    /// Has the system ask now and then whether the other end is there, without sending bytes.
    pub(crate) fn keep_alive(&self, idle: Duration) -> io::Result<()> {
        let socket = self.socket().incoming.as_ref();
        sockopt::set_socket_keepalive(socket, true)?;
        Ok(sockopt::set_tcp_keepidle(socket, idle)?)
    }

    /// Whether the peer's system closed the connection in order, once that is known.
    pub(crate) fn orderly_end(&self) -> &OrderlyEnd {
        &self.socket().orderly_end
    }

    fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

/// Ends the connection, even where a thread could still write to its `Outgoing`.
impl Drop for Socket {
    fn drop(&mut self) {
        // An error says that it has ended already.
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

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
