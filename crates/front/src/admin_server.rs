//! Accepts the connections of operators. A connection serves one request.
//!
//! The listener never stops accepting: at the bound on connections the oldest one is closed. So no
//! number of connections that are held open keeps a probe from its answer.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use actix_http::{HttpService, KeepAlive, Request};
use actix_rt::Arbiter;
use actix_rt::task::JoinHandle;
use actix_web::dev::{Service, ServiceFactory};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;

use crate::admin::{Operated, answer, one_request_only};
use crate::admin_address::{AdminAddress, Bound};

/// Most open connections of operators. At the bound the oldest one is closed. A client's request is answered
/// when it arrives, so the oldest connection is one whose client sends nothing or reads nothing.
pub const CONNECTIONS_MAX: usize = 128;

/// How long a client may take to send its request's head; then it is answered 408.
const HEAD_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a connection may stay open after its response was written.
const LINGER: Duration = Duration::from_secs(1);

/// How long a connection may take altogether. Covers a client that does not read its response.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long no connection is accepted after an error such as a lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// The listener for operators, running on a thread of its own. Dropping it does not stop it.
#[derive(Debug)]
pub(crate) struct AdminServer {
    address: AdminAddress,
    stop: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
}

impl AdminServer {
    /// Serves operators on a bound socket. Call it within an actix system.
    pub(crate) fn start(bound: Bound, address: AdminAddress, operated: Operated) -> Self {
        let (stop, stopping) = oneshot::channel();
        let (over, stopped) = oneshot::channel();
        let arbiter = Arbiter::new();
        let thread = arbiter.handle();
        arbiter.spawn_fn(move || {
            actix_rt::spawn(async move {
                if let Err(error) = listen(bound, operated, stopping).await {
                    tracing::error!(%error, "listener for operators failed; restart the node");
                }
                // An error means that the caller does not wait.
                let _ = over.send(());
                thread.stop();
            });
        });
        Self { address, stop, stopped }
    }

    /// The address on which it listens.
    pub(crate) fn address(&self) -> &AdminAddress {
        &self.address
    }

    /// Closes the listener and every connection.
    pub(crate) async fn stop(self) {
        drop(self.stop);
        // An error means that the thread has ended already.
        let _ = self.stopped.await;
    }
}

/// A socket that accepts connections.
trait Accept {
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    async fn accept(&self) -> io::Result<Self::Stream>;
}

impl Accept for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        TcpListener::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Accept for UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        UnixListener::accept(self).await.map(|(stream, _)| stream)
    }
}

async fn listen(
    bound: Bound,
    operated: Operated,
    stopping: oneshot::Receiver<()>,
) -> io::Result<()> {
    match bound {
        Bound::Tcp(listener) => {
            accept_until(&TcpListener::from_std(listener)?, operated, stopping).await;
        }
        Bound::Unix(file, listener) => {
            let listener = UnixListener::from_std(listener)?;
            accept_until(&listener, operated, stopping).await;
            // Before the listener is closed: see `Bound`.
            drop(file);
        }
    }
    Ok(())
}

/// Accepts connections until `stopping` is ready, and then closes them.
async fn accept_until<L: Accept>(
    listener: &L,
    operated: Operated,
    stopping: oneshot::Receiver<()>,
) {
    let http = HttpService::build()
        .keep_alive(KeepAlive::Disabled)
        .client_request_timeout(HEAD_TIMEOUT)
        .client_disconnect_timeout(LINGER)
        .on_connect_ext(|_: &L::Stream, shared| {
            shared.insert(Rc::new(Cell::new(false)));
        })
        .h1(move |request: Request| {
            // The HTTP layer also passes on what a client sent behind its first request.
            let is_first = request
                .conn_data::<Rc<Cell<bool>>>()
                .is_none_or(|is_answered| !is_answered.replace(true));
            let operated = operated.clone();
            async move {
                let response = match is_first {
                    true => answer(&request, &operated).await,
                    false => one_request_only(),
                };
                Ok::<_, std::convert::Infallible>(response)
            }
        });
    let Ok(http) = http.new_service(()).await else { return };
    let http = Rc::new(http);
    let mut stopping = pin!(stopping);
    let mut open = OpenConnections::default();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = &mut stopping => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(stream) => {
                let http = Rc::clone(&http);
                open.add(actix_rt::spawn(async move {
                    let served = http.call((stream, None::<SocketAddr>));
                    // Neither a protocol error of a client nor its timeout concerns an operator.
                    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, served).await;
                }));
                // A request that has arrived is answered before the next connection is accepted.
                // Otherwise its connection could be the oldest before it was read once.
                tokio::task::yield_now().await;
            }
            Err(error) => {
                tracing::warn!(%error, "accepting an operator's connection failed; retrying in 200 ms");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The open connections, oldest first; at most [`CONNECTIONS_MAX`]. Dropping it closes them.
#[derive(Default)]
struct OpenConnections(VecDeque<JoinHandle<()>>);

impl OpenConnections {
    /// Adds a connection; at the bound the oldest is closed.
    fn add(&mut self, connection: JoinHandle<()>) {
        if self.0.len() >= CONNECTIONS_MAX {
            self.0.retain(|connection| !connection.is_finished());
        }
        if self.0.len() >= CONNECTIONS_MAX
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        self.0.push_back(connection);
    }
}

impl Drop for OpenConnections {
    fn drop(&mut self) {
        self.0.iter().for_each(|connection| connection.abort());
    }
}
