//! Connections that others made to this node, and how long strangers may stay.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

use super::socket::{Fate, Socket};
use crate::metrics;

/// Most connections of those who have not proven themselves; one more is closed at once.
const STRANGERS_MAX: usize = 64;

/// The connections that are made to this node, for as long as it listens.
pub(crate) struct Guests {
    listener: TcpListener,
    strangers: Arc<Semaphore>,
    patience: Duration,
}

/// A connection that somebody made to this node.
pub(crate) struct Guest {
    socket: Socket,
    visit: Visit,
    /// Until then it has to be proven who it is.
    until: Option<Pin<Box<Sleep>>>,
}

/// A guest, for whoever gets to know it.
#[derive(Clone)]
pub(crate) struct Visit {
    fate: Fate,
    /// Its place among the strangers.
    place: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl Guests {
    /// Strangers may stay so long.
    pub(crate) fn new(listener: TcpListener, patience: Duration) -> Self {
        Self { listener, strangers: Arc::new(Semaphore::new(STRANGERS_MAX)), patience }
    }
}

impl Stream for Guests {
    type Item = io::Result<Guest>;

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Guest>>> {
        loop {
            let (stream, from) = ready!(self.listener.poll_accept(context))?;
            let Ok(place) = self.strangers.clone().try_acquire_owned() else {
                metrics::LINKS_REFUSED.inc();
                tracing::debug!(%from, "closed a connection: too many have not proven themselves");
                continue;
            };
            // Whoever has hung up already is found out when it is read from.
            let _ = stream.set_nodelay(true);
            let fate = Fate::default();
            let visit = Visit { fate: fate.clone(), place: Arc::new(Mutex::new(Some(place))) };
            let until = Some(Box::pin(sleep(self.patience)));
            return Poll::Ready(Some(Ok(Guest {
                socket: Socket::new(stream, fate),
                visit,
                until,
            })));
        }
    }
}

impl Visit {
    /// It has proven itself and may stay.
    pub(crate) fn admit(&self) {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn is_stranger(&self) -> bool {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// How its connection ended.
    pub(crate) fn fate(&self) -> &Fate {
        &self.fate
    }
}

impl Connected for Guest {
    type ConnectInfo = Visit;

    fn connect_info(&self) -> Visit {
        self.visit.clone()
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(until) = &mut self.until
            && until.as_mut().poll(context).is_ready()
        {
            self.until = None;
            if self.visit.is_stranger() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
