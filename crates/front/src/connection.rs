//! What applies to a connection besides its requests: it is counted, a client that does not read
//! is disconnected, and each head arrives in time.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use actix_web::dev::{Service, ServiceFactory, fn_factory, fn_service};
use futures_util::{FutureExt, TryFutureExt};
use tokio::net::TcpStream;

use crate::head_timeout::Timed;
use crate::metrics::{CONNECTIONS, GaugeGuard};

/// Time limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Limit for a head to arrive, from its first byte.
    pub(crate) head_timeout: Duration,
    /// Limit for sent data to stay unread, in seconds.
    pub(crate) write_timeout_secs: u32,
}

/// Serves each connection with `http`, and counts it.
pub(crate) fn connection_service<H>(
    http: H,
    limits: ConnectionLimits,
    is_counted: bool,
) -> impl ServiceFactory<TcpStream, Config = (), Response = (), Error = H::Error, InitError = H::InitError>
where
    H: ServiceFactory<(Timed, Option<SocketAddr>), Config = (), Response = ()>,
{
    fn_factory(move || {
        http.new_service(()).map_ok(move |http| {
            let http = Rc::new(http);
            fn_service(move |stream: TcpStream| {
                set_up(&stream, limits.write_timeout_secs);
                let open = is_counted.then(|| GaugeGuard::new(&CONNECTIONS));
                let stream = Timed::new(stream, limits.head_timeout);
                // No code reads the peer address: it is the balancer's. The future is boxed, since
                // the server's task for a connection reserves its size twice.
                Box::pin(http.call((stream, None)).inspect(move |_| drop(open)))
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
