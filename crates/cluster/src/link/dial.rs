//! Makes and keeps the link to one peer, and finds out when it is dead.

use std::error::Error as _;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use http::uri::PathAndQuery;
use store::{Marking, Presence};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use super::calls::Calls;
use super::frame::{Frame, Greeting, Kind};
use super::proof::{self, Role};
use super::socket::{Connector, Fate};
use super::suspicion::{Look, Suspicion};
use super::tls::Trust;
use super::{Codec, FLOW_BYTES, FRAME_OVERHEAD_BYTES, PATH};
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
    channel: Channel,
    incoming: Streaming<Frame>,
    fate: Fate,
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
async fn run(node: &Arc<Node>, link: &Link, established: Established) -> Ended {
    let Established { channel, mut incoming, fate } = established;
    let linked = Linked::new(node, link.incarnation, fate.clone());
    let counted = Counted::new();
    link.calls.up();
    let mut lapsed = pin!(link.lapsed.notified());
    let ended = loop {
        let message = tokio::select! {
            biased;
            message = incoming.message() => message,
            () = &mut lapsed => {
                tracing::warn!(node = %link.incarnation, "a peer's lease is over");
                break Ended::Lapsed;
            }
        };
        match message {
            Ok(Some(frame)) => {
                if !link.calls.take(frame) {
                    tracing::warn!(node = %link.incarnation, "a peer said what no peer says");
                    break Ended::Broken;
                }
            }
            Ok(None) => break Ended::Parted,
            Err(status) => {
                let (why, closed) = (status.code(), fate.was_closed());
                tracing::warn!(node = %link.incarnation, %why, closed, "the link to a peer broke");
                break Ended::Broken;
            }
        }
    };
    if matches!(ended, Ended::Broken) {
        metrics::LINKS_BROKEN.inc();
    }
    link.calls.broke(true);
    drop((linked, counted, channel));
    ended
}

/// Connects and shakes hands.
async fn meet(node: &Node, link: &Arc<Link>) -> Result<Established, Failure> {
    let (endpoint, fate) = (endpoint(node, &link.address)?, Fate::default());
    let tls = node.trust.as_ref().map(Trust::connector);
    let connecting = endpoint.connect_with_connector(Connector { fate: fate.clone(), tls });
    let channel = connecting.await.map_err(|error| unconnected(&error))?;
    let frame_bytes = node.settings.message_bytes_max.saturating_add(FRAME_OVERHEAD_BYTES);
    let mut grpc = Grpc::new(channel.clone())
        .max_decoding_message_size(frame_bytes)
        .max_encoding_message_size(frame_bytes);
    grpc.ready().await.map_err(|error| Failure::Other(error.to_string()))?;

    let nonce = super::nonce().map_err(|error| Failure::Other(error.to_string()))?;
    let caller = Greeting { incarnation: node.incarnation.0, nonce };
    link.calls.shake(Kind::Hello(caller.clone()).into());
    let path = PathAndQuery::from_static(PATH);
    let request = Request::new(Outgoing { number: link.calls.link(), link: link.clone() });
    let streaming = grpc.streaming(request, path, Codec::default()).await;
    let mut incoming = streaming.map_err(|status| refused(&status))?.into_inner();

    let Kind::Challenge(callee) = said(&mut incoming).await? else { return Err(strange()) };
    let secret = &node.settings.secret;
    let proof = proof::prove(secret, Role::Caller, &caller, &callee);
    link.calls.shake(Kind::Proof(proof).into());
    let Kind::Welcome(proof) = said(&mut incoming).await? else { return Err(strange()) };
    if !proof::holds(&proof, secret, Role::Callee, &caller, &callee) {
        metrics::LINKS_REFUSED.inc();
        return Err(Failure::Other("it does not know the cluster's secret".to_owned()));
    }
    // Only one that proved itself is believed.
    if callee.incarnation != link.incarnation.0 {
        return Err(Failure::Superseded(Incarnation(callee.incarnation)));
    }
    Ok(Established { channel, incoming, fate })
}

fn endpoint(node: &Node, address: &str) -> Result<Endpoint, Failure> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|_| Failure::Other(format!("{address:?} is not an address")))?;
    Ok(endpoint
        .connect_timeout(node.settings.connect())
        .http2_keep_alive_interval(node.settings.ping())
        .keep_alive_timeout(node.settings.pong())
        .keep_alive_while_idle(true)
        .initial_stream_window_size(FLOW_BYTES)
        .initial_connection_window_size(FLOW_BYTES))
}

/// What the peer says next in the handshake.
async fn said(incoming: &mut Streaming<Frame>) -> Result<Kind, Failure> {
    let frame = incoming.message().await.map_err(|status| refused(&status))?;
    frame.and_then(|frame| frame.kind).ok_or_else(strange)
}

fn strange() -> Failure {
    Failure::Other("what answers there is not a peer".to_owned())
}

fn refused(status: &Status) -> Failure {
    if status.code() == tonic::Code::Unauthenticated {
        metrics::LINKS_REFUSED.inc();
        return Failure::Other(
            "it does not accept this node; give all nodes the same cluster.secret".to_owned(),
        );
    }
    Failure::Other(format!("it ended the link: {}", status.code()))
}

fn unconnected(error: &tonic::transport::Error) -> Failure {
    let mut causes = std::iter::successors(error.source(), |cause| (*cause).source());
    match causes.find_map(|cause| cause.downcast_ref::<io::Error>()) {
        Some(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => Failure::Refused,
        Some(cause) if cause.kind() == io::ErrorKind::PermissionDenied => {
            metrics::LINKS_REFUSED.inc();
            Failure::Other(cause.to_string())
        }
        _ => Failure::Other(error.to_string()),
    }
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

/// What the calls have to say, as the body of a request.
struct Outgoing {
    number: u64,
    link: Arc<Link>,
}

impl Stream for Outgoing {
    type Item = Frame;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        self.link.calls.poll_frame(self.number, context)
    }
}
