//! A connection between two nodes that remembers how it ended.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::tls;
use super::wire::Wire;

/// How a connection ended, for whoever made it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fate(Arc<AtomicBool>);

impl Fate {
    /// The system at its other end closed it in order. It was neither reset nor silent.
    pub(crate) fn was_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A connection.
pub(crate) struct Socket {
    stream: TcpStream,
    fate: Fate,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, fate: Fate) -> Self {
        Self { stream, fate }
    }
}

/// Makes one connection, whose fate is told.
pub(crate) struct Connector {
    pub(crate) fate: Fate,
    /// Where links are encrypted.
    pub(crate) tls: Option<TlsConnector>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Wire>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (fate, tls) = (self.fate.clone(), self.tls.clone());
        Box::pin(async move {
            let address = uri.authority().map_or("", |authority| authority.as_str());
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let socket = Socket::new(stream, fate);
            let Some(tls) = tls else { return Ok(TokioIo::new(Wire::Plain(socket))) };
            let stream = tls::meet(&tls, uri.host().unwrap_or_default(), socket).await?;
            Ok(TokioIo::new(Wire::Tls(Box::new(stream))))
        })
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
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        if has_room && buffer.filled().len() == before {
            this.fate.0.store(true, Ordering::Release);
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
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
