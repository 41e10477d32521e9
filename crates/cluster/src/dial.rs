//! Makes and keeps the link to one peer, and finds out when it is dead.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use peering::{Established, Purpose};
use store::Marking;
use tokio::time::{sleep, timeout};

use crate::link::PeerLink;
use crate::linked::Linked;
use crate::meet::{Failure, meet};
use crate::node::MemberNode;
use crate::peer_watch::Watch;
use crate::{Settings, metrics};
use ownership::detector::{Attempt, FailureDetector, Found, LOOK_MS, Links, Next, Timing, Verdict};
use store::Incarnation;

/// How long a mark of a dead node stands: longer than any node pauses and comes back.
const MARK: Duration = Duration::from_hours(24);

/// How long the store may take to answer a look at a peer's lease.
const LOOK: Duration = Duration::from_millis(LOOK_MS);

/// A peer of an incompatible program is logged once in so many attempts to connect: about once a
/// minute, at a pause of 250 ms.
const ATTEMPTS_A_LOG_LINE: u32 = 240;

/// How an established link ended.
enum Ended {
    /// The peer ended it on purpose.
    Parted,
    /// The peer may not act any more. Others may, for what was its own.
    Lapsed,
    Broken,
}

/// Whatever happens to the task that connects, its calls learn of it.
struct Connecting(Arc<PeerLink>);

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

/// Whether this node has found the peer of a link dead. Not any more when this is dropped.
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

/// Connects, in the background, and keeps the link for as long as the peer is a member.
/// The calls must have asked for it: `Calls::open`, `Calls::want`.
pub(crate) fn connect(node: &Arc<MemberNode>, link: &Arc<PeerLink>) {
    let connecting = Connecting(link.clone());
    let node = node.clone();
    // A runtime that is shutting down drops the future, and so tells the calls.
    node.runtime.clone().spawn(async move {
        let closing = node.closing.clone();
        closing.run_until_cancelled(keep_linked(&node, &connecting.0)).await;
        drop(connecting);
    });
}

/// Makes the link, and makes it anew when it breaks.
async fn keep_linked(node: &Arc<MemberNode>, link: &Arc<PeerLink>) {
    // From the start, not only when a link of this node breaks: the peer may have made a link that
    // has broken already.
    let mut detector = detector(node);
    let found_dead = FoundDead { node, peer: link.incarnation };
    // For longer than a link: how the link ended may be known first.
    let _watch = Watch::start(node, link);
    loop {
        let meeting = meet(node, link, Purpose::Calls);
        let failure = match timeout(node.settings.connect(), meeting).await {
            Ok(Ok(established)) => {
                found_dead.set(false);
                record_payload_version(node, link, &established);
                match carry_calls(node, link, established).await {
                    Ended::Parted | Ended::Lapsed => return,
                    Ended::Broken => {}
                }
                detector = self::detector(node);
                continue;
            }
            Ok(Err(failure)) => failure,
            Err(_) => Failure::Other("it did not answer in time".to_owned()),
        };
        let is_incompatible = matches!(failure, Failure::Incompatible(_));
        link.is_incompatible.store(is_incompatible, Ordering::Relaxed);
        let goes_on = node.members.keeps(link);
        link.calls.broke(goes_on);
        if !goes_on {
            return;
        }
        let attempt = match failure {
            Failure::Refused => Attempt::Refused,
            Failure::Superseded(_) => Attempt::Superseded,
            Failure::Incompatible(_) | Failure::Other(_) => Attempt::Unreachable,
        };
        let peer = link.incarnation;
        let links =
            Links { is_up: node.peers.is_linked(peer), was_closed: node.peers.was_closed(peer) };
        let verdict = match detector.attempt_failed(node.lease.now(), attempt, links) {
            Next::Retry => Verdict::Undecided,
            Next::Look => look_up_peer(node, peer, &mut detector).await,
        };
        let is_dead = matches!(verdict, Verdict::Dead { .. });
        found_dead.set(is_dead && detector.saw_its_end());
        let gone = match verdict {
            Verdict::Undecided => false,
            Verdict::Dead { renewal } => mark_dead(node, peer, Some(renewal)).await,
            Verdict::Gone => true,
        };
        match failure {
            Failure::Superseded(by) if gone => {
                tracing::info!(node = %peer, %by, "a peer's process was replaced");
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

/// The peer's process stays the same, so what it reads does too.
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

/// Reads what the store holds about a peer, for its failure detector.
async fn look_up_peer(
    node: &MemberNode,
    peer: Incarnation,
    detector: &mut FailureDetector,
) -> Verdict {
    let asked_ms = node.lease.now();
    let Ok(Ok(presence)) = timeout(LOOK, node.store.presence(peer)).await else {
        detector.look_failed(node.lease.now());
        return Verdict::Undecided;
    };
    let answered_ms = node.lease.now();
    let found = Found { asked_ms, answered_ms, presence: &presence };
    detector.looked(node.incarnation, found)
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
            peering::Ended::Goodbye => Ended::Parted,
            why => {
                let closed = orderly_end.was_seen();
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
    drop((linked, counted, established));
    ended
}

/// Has the store note that an incarnation is dead, which was found so by the renewal `seen`. No
/// while another peer is linked to it, where it renewed since, or the store cannot be asked.
pub(crate) async fn mark_dead(
    node: &MemberNode,
    incarnation: Incarnation,
    seen: Option<u64>,
) -> bool {
    // Calls wait meanwhile for a link, so a store that is slow is not waited for.
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
            tracing::warn!(%error, node = %incarnation, "a node could not be marked dead");
            false
        }
    }
}
