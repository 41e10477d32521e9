//! What applies to a connection besides its requests: it is counted, it has a place, a client that
//! does not read is disconnected, and each head arrives in time.

use std::future::ready;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use actix_web::dev::{Service, ServiceFactory, fn_factory, fn_service};
use futures_util::future::Either;
use futures_util::{FutureExt, TryFutureExt};
use tokio::net::TcpStream;

use crate::connections_by_address::{ConnectionsByAddress, CountedConnection, TooMany};
use crate::head_timeout::{Timed, Timeouts};
use crate::metrics::{CONNECTIONS, Closed, GaugeGuard, count_closed};
use crate::places::{Place, Places};
use crate::second_poll::Repolled;
use crate::transport::Transport;

/// The response to a client whose address has too many connections. Its request is not read, so every
/// page may read this response, which says nothing else.
const TOO_MANY: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 2\r\n\
    access-control-allow-origin: *\r\naccess-control-expose-headers: retry-after\r\n\
    content-length: 0\r\nconnection: close\r\n\r\n";

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Limits for what a client sends.
    pub(crate) timeouts: Timeouts,
    /// Limit for sent data to stay unread, in seconds.
    pub(crate) write_timeout_secs: u32,
}

/// Where the connections of a worker's clients are counted.
#[derive(Clone)]
pub(crate) struct ClientConnections {
    pub(crate) places: Places,
    pub(crate) by_address: Arc<ConnectionsByAddress>,
}

/// A connection is counted until this is dropped.
struct Admitted {
    _open: GaugeGuard,
    _place: Place,
    _of_address: Option<CountedConnection>,
}

impl ClientConnections {
    fn admit<S: Transport>(
        &self,
        stream: &Timed<S>,
        peer: Option<SocketAddr>,
    ) -> Result<Admitted, TooMany> {
        Ok(Admitted {
            _of_address: self.by_address.count(peer.map(|peer| peer.ip()))?,
            _open: GaugeGuard::new(&CONNECTIONS),
            _place: self.places.take(stream.heads()),
        })
    }
}

/// Serves each connection with `http`, behind what `wrap` makes of it. Connections of clients are
/// counted in `clients`.
pub(crate) fn connection_service<H, S>(
    http: H,
    wrap: impl Fn(TcpStream, Option<SocketAddr>) -> S + Clone,
    limits: ConnectionLimits,
    clients: Option<ClientConnections>,
) -> impl ServiceFactory<TcpStream, Config = (), Response = (), Error = H::Error, InitError = H::InitError>
where
    H: ServiceFactory<(Timed<S>, Option<SocketAddr>), Config = (), Response = ()>,
    S: Transport,
{
    fn_factory(move || {
        let (clients, wrap) = (clients.clone(), wrap.clone());
        http.new_service(()).map_ok(move |http| {
            let http = Rc::new(http);
            fn_service(move |stream: TcpStream| {
                set_up(&stream, limits.write_timeout_secs);
                let peer = stream.peer_addr().ok();
                let stream = Timed::new(wrap(stream, peer), limits.timeouts);
                let admitted = clients.as_ref().map(|clients| clients.admit(&stream, peer));
                let Ok(admitted) = admitted.transpose() else {
                    count_closed(Closed::Address);
                    stream.refuse(TOO_MANY);
                    return Either::Left(ready(Ok(())));
                };
                let heads = Rc::clone(stream.heads());
                let served = http.call((stream, peer)).inspect(move |_| drop(admitted));
                // The future is boxed, since the server's task for a connection reserves its size
                // twice.
                Either::Right(Repolled::new(served, heads))
            })
        })
    })
}

fn set_up(stream: &TcpStream, write_timeout_secs: u32) {
    // Without TCP_NODELAY each SSE event is delayed by 44 ms.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection has no TCP_NODELAY");
    }
    bound_writes(stream, write_timeout_secs);
}

/// Lets the kernel reset a connection whose client does not read: the HTTP layer waits for it
/// without a limit, and polls no body meanwhile.
fn bound_writes(connection: &TcpStream, secs: u32) {
    #[cfg(target_os = "linux")]
    if let Err(error) =
        rustix::net::sockopt::set_tcp_user_timeout(connection, secs.saturating_mul(1_000))
    {
        tracing::debug!(%error, "a connection has no write timeout");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (connection, secs);
}
