//! Establishes the link to one peer, re-establishes it after a break, and detects that the peer is
//! dead.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use peering::{Established, Purpose};
use store::Marking;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::link::PeerLink;
use crate::linked::Linked;
use crate::meet::{Failure, meet};
use crate::node::MemberNode;
use crate::peer_watch::Watch;
use crate::{Settings, metrics};
use ownership::detector::{
    Attempt, FailureDetector, LEASE_READ_MS, LeaseAnswer, LinkStatus, Liveness, NextStep, Timing,
};
use store::Incarnation;

/// How long the store keeps the mark of a dead node: longer than any pause after which a process
/// may continue.
const MARK: Duration = Duration::from_hours(24);

/// How long the store may take to return the presence of a peer.
const LOOK: Duration = Duration::from_millis(LEASE_READ_MS);

/// The shortest interval between two establishments of a link that breaks. Without it, something
/// that ends each new connection would have both nodes repeat the handshake without a pause.
const LINK_INTERVAL: Duration = Duration::from_millis(250);

/// An incompatible peer is logged once in this many attempts to connect: about once a minute, at a
/// pause of 250 ms.
const ATTEMPTS_A_LOG_LINE: u32 = 240;

/// How an established link ended.
enum Ended {
    /// The peer closed it on purpose, with a goodbye.
    Goodbye,
    /// The peer's lease is over: other nodes may act for its sessions.
    Lapsed,
    Broken,
}

/// Reports a broken link to the waiting calls when the connecting task ends, for any reason.
struct Connecting(Arc<PeerLink>);

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.calls.link_broke(false);
    }
}

/// Counts an established link in the metrics until it is dropped.
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

/// Records whether this node has found the peer of a link dead. The record is cleared on drop.
struct FoundDead<'a> {
    node: &'a MemberNode,
    peer: Incarnation,
}

impl FoundDead<'_> {
    fn set(&self, is_dead: bool) {
        self.node.peers.set_found_dead(self.peer, is_dead);
    }
}

impl Drop for FoundDead<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// Connects in a background task, and keeps the link established as long as the peer is a member.
/// Call it only when `Calls::open` or `Calls::request_link` has requested a connection.
pub(crate) fn connect(node: &Arc<MemberNode>, link: &Arc<PeerLink>) {
    let connecting = Connecting(link.clone());
    let node = node.clone();
    // A runtime that shuts down drops this future, and with it `connecting`, which fails the calls.
    node.runtime.clone().spawn(async move {
        let closing = node.closing.clone();
        closing.run_until_cancelled(keep_linked(&node, &connecting.0)).await;
        drop(connecting);
    });
}

/// Establishes the link, and re-establishes it when it breaks, until the peer is gone or has left.
async fn keep_linked(node: &Arc<MemberNode>, link: &Arc<PeerLink>) {
    // The detector exists before the first break of this node's own link: a link that the peer made
    // may have broken already.
    let mut detector = detector(node);
    let found_dead = FoundDead { node, peer: link.incarnation };
    // The watch outlives each link: the end of the watched connection may be known before the link
    // ends.
    let _watch = Watch::start(node, link);
    loop {
        let meeting = meet(node, link, Purpose::Calls);
        let failure = match timeout(node.settings.connect(), meeting).await {
            Ok(Ok(established)) => {
                found_dead.set(false);
                record_payload_version(node, link, &established);
                let next = Instant::now() + LINK_INTERVAL;
                match carry_calls(node, link, established).await {
                    Ended::Goodbye | Ended::Lapsed => return,
                    Ended::Broken => sleep_until(next).await,
                }
                detector = self::detector(node);
                continue;
            }
            Ok(Err(failure)) => failure,
            Err(_) => {
                Failure::Other("the peer did not answer within cluster.connect_ms".to_owned())
            }
        };
        let is_incompatible = matches!(failure, Failure::Incompatible(_));
        link.is_incompatible.store(is_incompatible, Ordering::Relaxed);
        let goes_on = node.members.keeps(link);
        link.calls.link_broke(goes_on);
        if !goes_on {
            return;
        }
        let attempt = match failure {
            Failure::Refused => Attempt::Refused,
            Failure::Superseded(_) => Attempt::Superseded,
            Failure::Incompatible(_) | Failure::Other(_) => Attempt::Unreachable,
        };
        let peer = link.incarnation;
        let links = LinkStatus {
            is_up: node.peers.is_linked(peer),
            was_closed: node.peers.was_closed(peer),
        };
        let verdict = match detector.attempt_failed(node.lease.now(), attempt, links) {
            NextStep::Retry => Liveness::Undecided,
            NextStep::ReadLease => look_up_peer(node, peer, &mut detector).await,
        };
        let is_dead = matches!(verdict, Liveness::Dead { .. });
        found_dead.set(is_dead && detector.saw_process_end());
        let gone = match verdict {
            Liveness::Undecided => false,
            Liveness::Dead { renewal } => mark_dead(node, peer, Some(renewal)).await,
            Liveness::Gone => true,
        };
        match failure {
            Failure::Superseded(by) if gone => {
                tracing::info!(node = %peer, %by, "peer process was replaced");
            }
            Failure::Incompatible(why) if detector.attempts() % ATTEMPTS_A_LOG_LINE == 1 => {
                tracing::warn!(
                    node = %peer,
                    address = %link.address,
                    why,
                    "no link to a peer: the two programs read no common version of what nodes send \
                     each other"
                );
            }
            Failure::Other(why) if detector.attempts() == 1 => {
                tracing::warn!(node = %peer, why, "no link to a peer");
            }
            _ => {}
        }
        if gone {
            node.members.forget(peer);
            return;
        }
        sleep(Duration::from_millis(detector.pause_ms())).await;
    }
}

/// Records the payload version. It stays the same for every later link: the peer is the same
/// process.
fn record_payload_version(node: &MemberNode, link: &PeerLink, established: &Established) {
    link.is_incompatible.store(false, Ordering::Relaxed);
    if let Some(version) = node.local.versions.common(established.peer().versions) {
        link.payload_version.get_or_init(|| version);
    }
}

fn detector(node: &MemberNode) -> FailureDetector {
    let Settings { renew_ms, ping_ms, pong_ms, .. } = node.settings;
    let timing = Timing { renew_ms, notice_ms: ping_ms.saturating_add(pong_ms) };
    FailureDetector::new(node.lease.now(), timing)
}

/// Reads the presence of a peer from the store and passes it to the failure detector.
async fn look_up_peer(
    node: &MemberNode,
    peer: Incarnation,
    detector: &mut FailureDetector,
) -> Liveness {
    let asked_ms = node.lease.now();
    let Ok(Ok(presence)) = timeout(LOOK, node.store.presence(peer)).await else {
        detector.lease_read_failed(node.lease.now());
        return Liveness::Undecided;
    };
    let answered_ms = node.lease.now();
    let found = LeaseAnswer { asked_ms, answered_ms, presence: &presence };
    detector.lease_read(node.incarnation, found)
}

/// Carries calls over an established link until it ends.
async fn carry_calls(
    node: &Arc<MemberNode>,
    link: &Arc<PeerLink>,
    mut established: Established,
) -> Ended {
    let orderly_end = established.orderly_end();
    let linked = Linked::new(node, link.incarnation, orderly_end.clone());
    let counted = Counted::new();
    let mut lapsed = pin!(link.lapsed.notified());
    let ended = tokio::select! {
        biased;
        ended = established.carry(&link.calls) => match ended {
            peering::Ended::Goodbye => Ended::Goodbye,
            why => {
                let closed = orderly_end.was_seen();
                tracing::warn!(node = %link.incarnation, %why, closed, "peer link broke");
                Ended::Broken
            }
        },
        () = &mut lapsed => {
            tracing::warn!(node = %link.incarnation, "peer lease expired; closed the link to it");
            Ended::Lapsed
        }
    };
    if matches!(ended, Ended::Broken) {
        metrics::LINKS_BROKEN.inc();
    }
    link.calls.link_broke(true);
    drop((linked, counted, established));
    ended
}

/// Marks an incarnation dead in the store; `seen` is the number of the renewal after which it was
/// found dead. Returns `false` if another peer is linked to it, if it has renewed its lease since,
/// or if the store did not answer.
pub(crate) async fn mark_dead(
    node: &MemberNode,
    incarnation: Incarnation,
    seen: Option<u64>,
) -> bool {
    // The wait is bounded: calls wait for a link meanwhile, and the store may be slow.
    let also_dead = node.peers.found_dead_besides(incarnation);
    let marking = node.store.mark_dead(incarnation, node.incarnation, &also_dead, seen, MARK);
    let Ok(marking) = timeout(node.settings.connect(), marking).await else { return false };
    match marking {
        Ok(Marking::Dead) => {
            tracing::info!(node = %incarnation, "marked a node dead");
            metrics::MARKED.inc();
            node.members.forget(incarnation);
            true
        }
        Ok(Marking::LinkedTo(_) | Marking::Renewed) => false,
        Err(error) => {
            tracing::warn!(%error, node = %incarnation, "marking a node dead failed");
            false
        }
    }
}
