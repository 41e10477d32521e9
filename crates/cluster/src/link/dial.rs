//! Makes and keeps the link to one peer, and finds out when it is dead.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::BytesMut;
use store::{Marking, Presence};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::calls::Calls;
use super::frame::Kind;
use super::handshake::{self, Caller, Unmet};
use super::inbox::Inbox;
use super::line::{self, Beat, Line, Party};
use super::suspicion::{Look, Suspicion};
use super::tls;
use super::wire::{Socket, Wire};
use crate::node::Node;
use crate::peers::Linked;
use crate::{Incarnation, Settings, metrics};

/// How long a mark of a dead node stands: longer than any node pauses and comes back.
const MARK: Duration = Duration::from_hours(24);

/// How long the store may take to tell how a peer's lease is.
const LOOK: Duration = Duration::from_millis(500);

/// How long to wait between two tries to make a broken link anew.
const PAUSE: Duration = Duration::from_millis(50);

/// How long to wait after so many tries that it makes little difference.
const LONG_PAUSE: Duration = Duration::from_millis(250);
const SHORT_PAUSES: u32 = 40;

/// One node's link to another.
pub(crate) struct Link {
    /// Whom it is meant for.
    pub(crate) incarnation: Incarnation,
    pub(crate) address: Arc<str>,
    pub(crate) calls: Calls,
    /// The peer's lease is over: it does nothing of what it was asked.
    pub(crate) lapsed: Notify,
    /// The peer was about to leave when its lease was last seen, and ends the link itself.
    pub(crate) parts: AtomicBool,
}

/// Why there is no link.
enum Failure {
    /// Nothing listens at the address.
    Refused,
    /// Another process answers there, which is a proof that the one meant is dead.
    Superseded(Incarnation),
    /// Anything else.
    Other(String),
}

/// How an established link ended.
enum Ended {
    /// The peer ended it on purpose.
    Parted,
    /// The peer may not act any more. Others may, for what was its own.
    Lapsed,
    Broken,
}

/// An established link.
struct Established {
    wire: Wire,
    inbox: Inbox,
}

/// Whatever happens to the task that connects, its calls learn of it.
struct Connecting(Arc<Link>);

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.calls.broke(false);
    }
}

/// A link that is counted while it is up.
struct Counted;

impl Counted {
    fn new() -> Self {
        metrics::LINKS.inc();
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::LINKS.dec();
    }
}

/// Connects, in the background, and keeps the link for as long as the peer is a member.
/// The calls must have asked for it: [`Calls::open`], [`Calls::want`].
pub(crate) fn connect(node: &Arc<Node>, link: &Arc<Link>) {
    let connecting = Connecting(link.clone());
    let node = node.clone();
    // A runtime that is shutting down drops the future, and so tells the calls.
    node.runtime.clone().spawn(async move {
        let closing = node.closing.clone();
        closing.run_until_cancelled(keep(&node, &connecting.0)).await;
        drop(connecting);
    });
}

/// Makes the link, and makes it anew when it breaks.
async fn keep(node: &Arc<Node>, link: &Arc<Link>) {
    // A link that the peer made and lost was one as well.
    let mut suspicion = suspect(node);
    let mut tries = 0;
    loop {
        let failure = match timeout(node.settings.connect(), meet(node, link)).await {
            Ok(Ok(established)) => {
                match run(node, link, established).await {
                    Ended::Parted | Ended::Lapsed => return,
                    Ended::Broken => {}
                }
                suspicion = suspect(node);
                tries = 0;
                continue;
            }
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Other("it did not answer in time".to_owned()),
        };
        let goes_on = node.members.keeps(link);
        link.calls.broke(goes_on);
        if !goes_on {
            return;
        }
        let gone = match failure {
            Failure::Refused => {
                suspicion.refused() && judge(node, link.incarnation, &mut suspicion).await
            }
            Failure::Superseded(by) => {
                tracing::info!(node = %link.incarnation, %by, "a peer's process was replaced");
                mark_dead(node, link.incarnation).await
            }
            Failure::Other(why) => {
                suspicion.not_refused();
                if tries == 0 {
                    tracing::warn!(node = %link.incarnation, why, "no link to a peer");
                }
                false
            }
        };
        if gone {
            node.members.forget(link.incarnation);
            return;
        }
        tries += 1;
        sleep(if tries < SHORT_PAUSES { PAUSE } else { LONG_PAUSE }).await;
    }
}

fn suspect(node: &Node) -> Suspicion {
    let Settings { renew_ms, ping_ms, pong_ms, .. } = node.settings;
    Suspicion::new(node.right.now(), (renew_ms, ping_ms.saturating_add(pong_ms)))
}

/// Is a peer that refuses connections dead, or gone? Has it marked if so.
async fn judge(node: &Node, peer: Incarnation, suspicion: &mut Suspicion) -> bool {
    if node.peers.is_linked(peer) {
        suspicion.is_linked(node.right.now());
        return false;
    }
    // Without a link that broke, the address may never have been right.
    let Some(closed) = node.peers.was_closed(peer) else { return false };
    let asked = node.right.now();
    let looking = async {
        let presence = node.store.presence(peer).await?;
        let left = node.store.lease_left(peer).await?;
        Ok::<_, store::Error>((presence, left))
    };
    match timeout(LOOK, looking).await {
        Ok(Ok((Presence::Live(lease), Some(left)))) => {
            let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            let linked = lease.linked.contains(&node.incarnation);
            let look = Look { asked, answered: node.right.now(), left, linked, closed };
            suspicion.weigh(look) && mark_dead(node, peer).await
        }
        Ok(Ok((Presence::Live(_), None))) => false,
        // Marked by another, or left.
        Ok(Ok((Presence::Dead { .. } | Presence::Gone, _))) => true,
        Ok(Err(_)) | Err(_) => {
            suspicion.begin_again(node.right.now());
            false
        }
    }
}

/// Carries calls over an established link until it ends.
async fn run(node: &Arc<Node>, link: &Arc<Link>, established: Established) -> Ended {
    let Established { mut wire, mut inbox } = established;
    let linked = Linked::new(node, link.incarnation, wire.fate().clone());
    let counted = Counted::new();
    let calling = Calling { number: link.calls.link(), link: link.clone() };
    let line = Arc::new(Line::new(calling, &wire));
    link.calls.up(line.clone());
    let Settings { ping_ms, .. } = node.settings;
    let every = Duration::from_millis(ping_ms);
    let beat = Beat { every, asks: true, silence: super::silence(&node.settings, ping_ms) };
    let mut lapsed = pin!(link.lapsed.notified());
    let ended = tokio::select! {
        biased;
        ended = line.run(&mut wire, &mut inbox, beat) => match ended {
            line::Ended::Parted => Ended::Parted,
            why => {
                let closed = wire.fate().was_closed();
                tracing::warn!(node = %link.incarnation, %why, closed, "the link to a peer broke");
                Ended::Broken
            }
        },
        () = &mut lapsed => {
            tracing::warn!(node = %link.incarnation, "a peer's lease is over");
            Ended::Lapsed
        }
    };
    if matches!(ended, Ended::Broken) {
        metrics::LINKS_BROKEN.inc();
    }
    link.calls.broke(true);
    drop((linked, counted, wire));
    ended
}

/// Connects and shakes hands.
async fn meet(node: &Node, link: &Link) -> Result<Established, Failure> {
    let mut wire = reach(node, &link.address).await.map_err(unreached)?;
    let mut inbox = Inbox::new(handshake::FRAME_BYTES_MAX);
    let own = Caller { incarnation: node.incarnation, ping_ms: node.settings.ping_ms };
    let secret = &node.settings.secret;
    let callee = handshake::call(own, secret, &mut wire, &mut inbox).await.map_err(unmet)?;
    if callee != link.incarnation {
        return Err(Failure::Superseded(callee));
    }
    inbox.admit(super::frame_bytes_max(&node.settings));
    Ok(Established { wire, inbox })
}

async fn reach(node: &Node, address: &str) -> io::Result<Wire> {
    let socket = Socket::new(TcpStream::connect(address).await?)?;
    let Some(trust) = &node.trust else { return Ok(Wire::Plain(socket)) };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    Ok(Wire::Tls(Box::new(tls::meet(&trust.connector(), host, socket).await?)))
}

fn unreached(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Refused,
        io::ErrorKind::PermissionDenied => {
            metrics::LINKS_REFUSED.inc();
            Failure::Other(error.to_string())
        }
        _ => Failure::Other(error.to_string()),
    }
}

fn unmet(unmet: Unmet) -> Failure {
    let why = match unmet {
        Unmet::Ended(error) => return unreached(tls::unheard(error)),
        Unmet::Strange => "what answers there is not a peer",
        Unmet::Random => "the system has no random bits",
        Unmet::Unproven => {
            metrics::LINKS_REFUSED.inc();
            "it does not know the cluster's secret"
        }
        Unmet::Refused => {
            metrics::LINKS_REFUSED.inc();
            "it does not accept this node; give all nodes the same cluster.secret"
        }
    };
    Failure::Other(why.to_owned())
}

/// Has the store note that an incarnation is dead. No while another peer is linked to it,
/// or the store cannot be asked.
pub(crate) async fn mark_dead(node: &Node, incarnation: Incarnation) -> bool {
    // Calls wait meanwhile for a link, so a store that is slow is not waited for.
    let marking = node.store.mark_dead(incarnation, node.incarnation, MARK);
    let Ok(marking) = timeout(node.settings.connect(), marking).await else { return false };
    match marking {
        Ok(Marking::Dead) => {
            tracing::info!(node = %incarnation, "marked a node dead");
            metrics::MARKED.inc();
            node.members.forget(incarnation);
            true
        }
        Ok(Marking::LinkedTo(_)) => false,
        Err(error) => {
            tracing::warn!(%error, node = %incarnation, "a node could not be marked dead");
            false
        }
    }
}

/// The calls of a link, while it lasts.
struct Calling {
    number: u64,
    link: Arc<Link>,
}

impl Party for Calling {
    fn take(&self, kind: Kind) -> bool {
        self.link.calls.take(kind)
    }

    fn say(&self, out: &mut BytesMut, enough_bytes: usize) {
        self.link.calls.say(self.number, out, enough_bytes);
    }
}
