//! Takes connections of peers. Those that have not proven themselves yet are bounded.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::connect::LocalNode;
use crate::established::Established;
use crate::handshake::{self, Purpose, Unmet};
use crate::inbox::Inbox;
use crate::wire::{Socket, Wire};
use crate::{FRAME_BYTES_MAX, PING_MS_MAX, metrics, tls};

/// Most connections of peers that have not proven themselves. One more closes the oldest of
/// them, so that connections that prove nothing do not keep peers out.
const STRANGERS_MAX: usize = 64;

/// Takes the connections that arrive at this node.
#[derive(Default)]
pub struct Listener {
    strangers: Strangers,
    refusals: Refusals,
}

impl Listener {
    /// Begins with a connection that has arrived: when there are too many, the oldest one that
    /// has not proven itself is closed. Call [`Arrival::meet`] in a task of its own.
    pub fn accept(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) -> Arrival {
        let stranger = Stranger::new(self);
        Arrival { stranger, stream, from }
    }
}

/// A connection of which it is not known yet who made it.
pub struct Arrival {
    stranger: Stranger,
    stream: TcpStream,
    from: SocketAddr,
}

impl Arrival {
    /// Finds out who has connected, within this time. `None`: no node of this cluster, or the
    /// connection had to make room for a later one.
    pub async fn meet(self, local: &LocalNode, within: Duration) -> Option<Established> {
        let Self { stranger, stream, from } = self;
        let meeting = meet(local, &stranger.listener.refusals, stream, from);
        let met = stranger.place.run_until_cancelled(timeout(within, meeting)).await;
        met?.ok()?
    }
}

/// Connections of peers that have not proven themselves, the oldest first: what closes each.
/// At most [`STRANGERS_MAX`].
#[derive(Default)]
struct Strangers(Mutex<(u64, BTreeMap<u64, CancellationToken>)>);

impl Strangers {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, CancellationToken>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them, until it has proven itself or is gone.
struct Stranger {
    number: u64,
    /// Cancelled when it must make room for a later one.
    place: CancellationToken,
    listener: Arc<Listener>,
}

impl Stranger {
    fn new(listener: &Arc<Listener>) -> Self {
        let place = CancellationToken::new();
        let mut all = listener.strangers.lock();
        let (next, places) = &mut *all;
        let number = *next;
        *next += 1;
        if places.len() >= STRANGERS_MAX
            && let Some((_, oldest)) = places.pop_first()
        {
            metrics::LINKS_REFUSED.inc();
            tracing::debug!("closed a connection that has not proven itself for a later one");
            oldest.cancel();
        }
        places.insert(number, place.clone());
        drop(all);
        Self { number, place, listener: listener.clone() }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.listener.strangers.lock().1.remove(&self.number);
    }
}

async fn meet(
    local: &LocalNode,
    refusals: &Refusals,
    stream: TcpStream,
    from: SocketAddr,
) -> Option<Established> {
    let mut wire = match welcome(local, stream).await {
        Ok(wire) => wire,
        Err(error) => {
            refusals.distrusted(from, &error);
            return None;
        }
    };
    refusals.none();
    let mut inbox = Inbox::new(handshake::FRAME_BYTES_MAX);
    let own = local.identity(0, Purpose::default());
    match handshake::answer(&own, &local.secret, &mut wire, &mut inbox).await {
        Ok(peer) => {
            inbox.admit(FRAME_BYTES_MAX);
            // A peer may say anything; the settings of a node allow no more.
            let heartbeat = local.heartbeat(peer.ping_ms.min(PING_MS_MAX), false);
            Some(Established::new(peer, wire, inbox, heartbeat))
        }
        Err(Unmet::Unproven) => {
            metrics::LINKS_REFUSED.inc();
            tracing::warn!(%from, "refused a peer that does not know the cluster's secret");
            None
        }
        Err(Unmet::Incompatible(theirs)) => {
            // The link the other way logs the same once for each peer.
            tracing::debug!(%from, %theirs, own = %local.versions, "a peer reads other versions");
            None
        }
        Err(error) => {
            tracing::debug!(%from, ?error, "closed a connection that is not a peer's");
            None
        }
    }
}

async fn welcome(local: &LocalNode, stream: TcpStream) -> io::Result<Wire> {
    let socket = Socket::new(stream)?;
    Ok(match &local.trust {
        Some(trust) => Wire::Tls(Box::new(trust.accept(socket).await?.into())),
        None => Wire::Plain(socket),
    })
}

/// Logs a peer that cannot be trusted once, until another one can be.
#[derive(Default)]
struct Refusals {
    was_logged: AtomicBool,
}

impl Refusals {
    fn none(&self) {
        self.was_logged.store(false, Ordering::Relaxed);
    }

    fn distrusted(&self, from: SocketAddr, error: &io::Error) {
        if !tls::is_distrust(error) {
            return;
        }
        metrics::LINKS_REFUSED.inc();
        if self.was_logged.swap(true, Ordering::Relaxed) {
            tracing::debug!(%from, %error, "refused a peer");
        } else {
            tracing::warn!(%from, %error, "refused a peer; {}", tls::REMEDY);
        }
    }
}
