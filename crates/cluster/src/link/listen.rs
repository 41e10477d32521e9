//! Takes links of peers, and how long strangers may stay.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::answering::Answering;
use super::connection::{Heartbeat, PeerConnection};
use super::handshake::{self, PeerIdentity, Purpose, Unmet};
use super::inbox::Inbox;
use super::wire::{Socket, Wire};
use super::{PING_MS_MAX, tls, watch};
use crate::flush_queue::Flush;
use crate::metrics;
use crate::node::Node;
use crate::peers::Linked;

/// Most connections of those who have not proven themselves. One more closes the oldest of
/// them, so that connections that prove nothing do not keep peers out.
const STRANGERS_MAX: usize = 64;

/// How long to wait after no connection could be taken: the process has too many files open.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a peer has to close a link that this node has ended.
const CLOSE_GRACE: Duration = Duration::from_millis(100);

/// Listens until the node closes its links.
pub(crate) async fn listen(node: Arc<Node>, listener: TcpListener) {
    let strangers = Arc::new(Strangers::default());
    let refusals = Arc::new(Refusals::default());
    let closing = node.closing.clone();
    while let Some(accepted) = closing.run_until_cancelled(listener.accept()).await {
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "no link of a peer can be taken");
                sleep(PAUSE).await;
                continue;
            }
        };
        let stranger = Stranger::new(&strangers);
        let (node, refusals) = (node.clone(), refusals.clone());
        tokio::spawn(async move {
            let mut inbox = Inbox::new(handshake::FRAME_BYTES_MAX);
            let meeting = meet(&node, &refusals, (stream, from), &mut inbox);
            let met = timeout(node.settings.connect(), meeting);
            let met = node.closing.run_until_cancelled(stranger.place.run_until_cancelled(met));
            let Some(Some(Ok(Some((caller, wire))))) = met.await else { return };
            drop(stranger);
            match caller.purpose {
                Purpose::Calls => answer(&node, caller, wire, inbox).await,
                Purpose::Watch => watch::hold(&node, wire, inbox).await,
            }
        });
    }
}

/// Connections of those who have not proven themselves, the oldest first: what closes each.
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
    strangers: Arc<Strangers>,
}

impl Stranger {
    fn new(strangers: &Arc<Strangers>) -> Self {
        let place = CancellationToken::new();
        let mut all = strangers.lock();
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
        Self { number, place, strangers: strangers.clone() }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.strangers.lock().1.remove(&self.number);
    }
}

/// Finds out who has connected. `None`: nobody who may.
async fn meet(
    node: &Node,
    refusals: &Refusals,
    (stream, from): (TcpStream, SocketAddr),
    inbox: &mut Inbox,
) -> Option<(PeerIdentity, Wire)> {
    let mut wire = match welcome(node, stream).await {
        Ok(wire) => wire,
        Err(error) => {
            refusals.distrusted(from, &error);
            return None;
        }
    };
    refusals.none();
    let (incarnation, address) = (node.incarnation, node.address.clone());
    let own = PeerIdentity { incarnation, ping_ms: 0, address, purpose: Purpose::default() };
    let met = handshake::answer(&own, &node.settings.secret, &mut wire, inbox).await;
    match met {
        Ok(caller) => Some((caller, wire)),
        Err(Unmet::Unproven) => {
            metrics::LINKS_REFUSED.inc();
            tracing::warn!(%from, "refused a peer that does not know the cluster's secret");
            None
        }
        Err(error) => {
            tracing::debug!(%from, ?error, "closed a connection that is not a peer's");
            None
        }
    }
}

async fn welcome(node: &Node, stream: TcpStream) -> io::Result<Wire> {
    let socket = Socket::new(stream)?;
    Ok(match &node.trust {
        Some(trust) => Wire::Tls(Box::new(trust.accept(socket).await?.into())),
        None => Wire::Plain(socket),
    })
}

/// Answers a peer's calls until the link ends.
async fn answer(node: &Arc<Node>, caller: PeerIdentity, mut wire: Wire, mut inbox: Inbox) {
    inbox.admit(super::FRAME_BYTES_MAX);
    let linked = Linked::new(node, caller.incarnation, wire.fate().clone());
    let connection = Arc::new_cyclic(|connection| {
        let connection: &Weak<PeerConnection<Answering>> = connection;
        PeerConnection::new(
            Answering::new(node.clone(), connection.clone() as Weak<dyn Flush>),
            &wire,
        )
    });
    let every = Duration::from_millis(caller.ping_ms.min(PING_MS_MAX));
    let silence = super::silence(&node.settings, caller.ping_ms);
    let heartbeat = Heartbeat { every, pings: false, silence };
    let mut running = connection.run(&mut wire, &mut inbox, heartbeat);
    tokio::select! {
        why = &mut running => tracing::debug!(node = %caller.incarnation, %why, "a link ended"),
        () = node.closing.cancelled() => {
            connection.say_goodbye();
            let _ = timeout(CLOSE_GRACE, running).await;
        }
    }
    connection.handler().end();
    drop((linked, wire));
}

/// Who could not be trusted, told once until somebody can.
#[derive(Default)]
struct Refusals {
    were_told: AtomicBool,
}

impl Refusals {
    fn none(&self) {
        self.were_told.store(false, Ordering::Relaxed);
    }

    fn distrusted(&self, from: SocketAddr, error: &io::Error) {
        if !tls::is_distrust(error) {
            return;
        }
        metrics::LINKS_REFUSED.inc();
        if self.were_told.swap(true, Ordering::Relaxed) {
            tracing::debug!(%from, %error, "refused a peer");
        } else {
            tracing::warn!(%from, %error, "refused a peer; {}", tls::REMEDY);
        }
    }
}
