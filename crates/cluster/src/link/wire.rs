//! A connection between two nodes, in the clear or encrypted.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{Accept, TlsStream};

use super::socket::Socket;

/// What bytes go over.
pub(crate) enum Wire {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
    /// Whoever reads or writes finds out first who is at the other end.
    Accepting(Box<Accept<Socket>>),
    /// It was not to be trusted.
    Refused,
}

impl Wire {
    /// Returns when the other end is known, with whether that was news.
    pub(crate) fn poll_known(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Self::Accepting(accept) = self else { return Poll::Ready(Ok(false)) };
        match ready!(Pin::new(accept).poll(context)) {
            Ok(stream) => {
                *self = Self::Tls(Box::new(stream.into()));
                Poll::Ready(Ok(true))
            }
            Err(error) => {
                *self = Self::Refused;
                Poll::Ready(Err(error))
            }
        }
    }
}

fn refused<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
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
            Self::Accepting(_) | Self::Refused => refused(),
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
            Self::Accepting(_) | Self::Refused => refused(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Accepting(_) | Self::Refused => refused(),
        }
    }

    fn is_write_vectored(&self) -> bool {
        // TLS takes slices as well.
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
            Self::Accepting(_) | Self::Refused => refused(),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Accepting(_) | Self::Refused => Poll::Ready(Ok(())),
        }
    }
}
