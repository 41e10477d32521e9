//! Accepts connections of peers. The number of connections that are not authenticated yet is
//! bounded.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::connect::LocalNode;
use crate::established::Established;
use crate::handshake::{self, HandshakeError, Purpose};
use crate::inbox::Inbox;
use crate::protection::{Credentials, Protection};
use crate::socket::Socket;
use crate::unauthenticated::UnauthenticatedConnections;
use crate::wire::Wire;
use crate::{FRAME_BYTES_MAX, PING_MS_MAX, metrics, tls};

/// The first byte of a TLS connection: the type of a handshake record. The first byte of a plain
/// connection is the length of its first frame, and no `Hello` is as short as 22 bytes.
const TLS_HANDSHAKE: u8 = 0x16;

/// Accepts the connections that arrive at this node.
#[derive(Default)]
pub struct Listener {
    unauthenticated: UnauthenticatedConnections,
    refusals: Refusals,
}

impl Listener {
    /// Registers a connection that has arrived. At the bound, the oldest connection that is not
    /// authenticated is closed, of the address that has most of them. Call [`Arrival::meet`] in a task of its own.
    pub fn accept(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) -> Arrival {
        let connection = UnauthenticatedConnection::new(self, from);
        Arrival { connection, stream, from }
    }
}

/// A connection whose other end is not authenticated yet.
pub struct Arrival {
    connection: UnauthenticatedConnection,
    stream: TcpStream,
    from: SocketAddr,
}

impl Arrival {
    /// Authenticates the other end, within this time. `None`: the other end is not a node of this
    /// cluster, or a later connection took the place of this one.
    pub async fn meet(self, local: &LocalNode, within: Duration) -> Option<Established> {
        let Self { connection, stream, from } = self;
        let meeting = meet(local, &connection.listener.refusals, stream, from);
        let met = connection.place.run_until_cancelled(timeout(within, meeting)).await;
        met?.ok()?
    }
}

/// The registration of one such connection, until it is authenticated or closed.
struct UnauthenticatedConnection {
    number: u64,
    /// Cancelled when a later connection takes its place.
    place: CancellationToken,
    listener: Arc<Listener>,
}

impl UnauthenticatedConnection {
    fn new(listener: &Arc<Listener>, from: SocketAddr) -> Self {
        let place = CancellationToken::new();
        let number = listener.unauthenticated.add(from.ip(), place.clone());
        Self { number, place, listener: listener.clone() }
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        self.listener.unauthenticated.remove(self.number);
    }
}

async fn meet(
    local: &LocalNode,
    refusals: &Refusals,
    stream: TcpStream,
    from: SocketAddr,
) -> Option<Established> {
    let credentials = local.credentials.as_ref()?;
    let (mut wire, protection) = match open_wire(credentials, stream).await {
        Ok(opened) => opened,
        Err(error) => {
            refusals.distrusted(from, &error, credentials);
            return None;
        }
    };
    if !matches!(protection, Protection::Plain) {
        refusals.none();
    }
    let mut inbox = Inbox::new(handshake::FRAME_BYTES_MAX);
    let own = local.identity(0, Purpose::default());
    match handshake::answer(&own, credentials, &protection, &mut wire, &mut inbox).await {
        Ok(peer) => {
            local.warn_of_plain(credentials, &protection, &peer, peer.purpose);
            inbox.admit(FRAME_BYTES_MAX);
            // Bounds the announced interval to the largest value that settings allow.
            let heartbeat = local.heartbeat(peer.ping_ms.min(PING_MS_MAX), false);
            Some(Established::new(peer, wire, inbox, heartbeat))
        }
        Err(HandshakeError::Unproven) => {
            refusals.unproven(from);
            None
        }
        Err(error @ (HandshakeError::TooOld | HandshakeError::Downgraded)) => {
            refusals.unencrypted(from, &error);
            None
        }
        Err(HandshakeError::Incompatible(theirs)) => {
            // The link in the other direction logs this once for each peer.
            tracing::debug!(%from, %theirs, own = %local.versions, "refused a peer: versions differ");
            None
        }
        Err(error) => {
            tracing::debug!(%from, ?error, "closed a connection: the handshake failed");
            None
        }
    }
}

async fn open_wire(credentials: &Credentials, stream: TcpStream) -> io::Result<(Wire, Protection)> {
    let mut socket = Socket::new(stream)?;
    let trust = &credentials.trust;
    if trust.has_certificates() || socket.first_byte().await? == Some(TLS_HANDSHAKE) {
        return trust.accept(socket).await;
    }
    Ok((Wire::Plain(socket), Protection::Plain))
}

/// The interval at which peers with a wrong secret are logged: such a peer tries again and again.
const UNPROVEN_LOG: Duration = Duration::from_secs(30);

/// Logs the first untrusted peer as a warning, and again only after a trusted one has connected.
#[derive(Default)]
struct Refusals {
    was_logged: AtomicBool,
    unproven: Mutex<Unproven>,
}

/// The peers with a wrong secret.
#[derive(Default)]
struct Unproven {
    /// When the last line was logged.
    logged: Option<Instant>,
    /// How many were refused since then.
    not_logged: u64,
}

impl Refusals {
    fn none(&self) {
        self.was_logged.store(false, Ordering::Relaxed);
    }

    fn distrusted(&self, from: SocketAddr, error: &io::Error, credentials: &Credentials) {
        if !tls::is_distrust(error) {
            return;
        }
        metrics::LINKS_REFUSED.inc();
        if self.was_logged.swap(true, Ordering::Relaxed) {
            tracing::debug!(%from, %error, "refused a peer: TLS failed");
        } else {
            let remedy = credentials.trust.remedy();
            tracing::warn!(%from, %error, "refused a peer: TLS failed; {remedy}");
        }
    }

    fn unproven(&self, from: SocketAddr) {
        metrics::LINKS_REFUSED.inc();
        let refused = {
            let mut unproven = self.unproven.lock().unwrap_or_else(PoisonError::into_inner);
            let is_due = unproven.logged.is_none_or(|logged| logged.elapsed() >= UNPROVEN_LOG);
            unproven.not_logged += 1;
            if is_due {
                unproven.logged = Some(Instant::now());
            }
            is_due.then(|| std::mem::take(&mut unproven.not_logged))
        };
        if let Some(refused) = refused {
            tracing::warn!(
                %from,
                refused,
                "refused a peer: it does not know the secret of this node; give all nodes the same \
                 `cluster.secret` (logged at most every 30 s)"
            );
        }
    }

    fn unencrypted(&self, from: SocketAddr, error: &HandshakeError) {
        metrics::LINKS_REFUSED.inc();
        if self.was_logged.swap(true, Ordering::Relaxed) {
            tracing::debug!(%from, ?error, "refused a peer: the connection is not encrypted");
        } else {
            tracing::warn!(
                %from,
                "refused a peer: the connection is not encrypted; replace the program of an older \
                 peer or set cluster.accept_plain, and give all nodes the same cluster.encrypt"
            );
        }
    }
}
