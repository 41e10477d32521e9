//! Connections that remember whether the server has answered on them.
//!
//! A server may close an idle connection while a request is on its way: that says nothing about whether it
//! can be reached.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::http::Extensions;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};

/// Whether the server has answered a request on a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<AtomicBool>);

impl Answered {
    /// Notes the answer that has these extensions.
    pub(crate) fn note(extensions: &Extensions) {
        if let Some(Self(answered)) = extensions.get() {
            answered.store(true, Ordering::Relaxed);
        }
    }

    /// Whether an error occurred on a connection on which the server had answered before.
    pub(crate) fn before(error: &hyper_util::client::legacy::Error) -> bool {
        let mut extensions = Extensions::new();
        let Some(connected) = error.connect_info() else { return false };
        connected.get_extras(&mut extensions);
        extensions.get::<Self>().is_some_and(|Self(answered)| answered.load(Ordering::Relaxed))
    }
}

/// A connection.
pub(crate) struct Tracked<T> {
    inner: T,
    answered: Answered,
}

impl<T> Tracked<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner, answered: Answered::default() }
    }
}

impl<T: Connection> Connection for Tracked<T> {
    fn connected(&self) -> Connected {
        self.inner.connected().extra(self.answered.clone())
    }
}

impl<T: Read + Unpin> Read for Tracked<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<T: Write + Unpin> Write for Tracked<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, buffers)
    }
}
