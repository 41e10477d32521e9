//! Connections that others made to this node, and how long strangers may stay.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

use super::socket::{Fate, Socket};
use super::tls;
use super::wire::Wire;
use crate::metrics;
use crate::node::Node;

/// Most connections of those who have not proven themselves; one more is closed at once.
const STRANGERS_MAX: usize = 64;

/// The connections that are made to this node, for as long as it listens.
pub(crate) struct Guests {
    listener: TcpListener,
    node: Arc<Node>,
    strangers: Arc<Semaphore>,
    /// That one was refused was said, and none was taken since: it is not said again.
    said: Arc<AtomicBool>,
}

/// A connection that somebody made to this node.
pub(crate) struct Guest {
    wire: Wire,
    from: SocketAddr,
    said: Arc<AtomicBool>,
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
    /// Strangers may stay for as long as the node's settings say.
    pub(crate) fn new(listener: TcpListener, node: Arc<Node>) -> Self {
        let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
        Self { listener, node, strangers, said: Arc::default() }
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
            let until = Some(Box::pin(sleep(self.node.settings.connect())));
            let socket = Socket::new(stream, fate);
            let wire = match &self.node.trust {
                Some(trust) => Wire::Accepting(Box::new(trust.accept(socket))),
                None => Wire::Plain(socket),
            };
            let said = self.said.clone();
            return Poll::Ready(Some(Ok(Guest { wire, from, said, visit, until })));
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

impl Guest {
    /// Returns when the other end may be listened to.
    fn poll_known(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(self.wire.poll_known(context)) {
            Ok(is_news) => {
                if is_news {
                    self.said.store(false, Ordering::Relaxed);
                }
                Poll::Ready(Ok(()))
            }
            Err(error) => {
                self.refuse(&error);
                Poll::Ready(Err(error))
            }
        }
    }

    fn refuse(&self, error: &io::Error) {
        if !tls::is_distrust(error) {
            return;
        }
        metrics::LINKS_REFUSED.inc();
        let from = self.from;
        if self.said.swap(true, Ordering::Relaxed) {
            tracing::debug!(%from, %error, "refused a peer");
        } else {
            tracing::warn!(%from, %error, "refused a peer; {}", tls::REMEDY);
        }
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
        ready!(self.poll_known(context))?;
        Pin::new(&mut self.wire).poll_read(context, buffer)
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_known(context))?;
        Pin::new(&mut self.wire).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_known(context))?;
        Pin::new(&mut self.wire).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_known(context))?;
        Pin::new(&mut self.wire).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_shutdown(context)
    }
}
