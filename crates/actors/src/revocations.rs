//! Spreads revocations, and ends the sessions of revoked clients.
//!
//! Each node looks at the store's generation several times a second. A node whose store does not answer
//! asks its peers instead, one after another. The node that an operator tells also tells its peers at once.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use cluster::{Cluster, Peer};
use futures_util::future::join_all;
use ownership::revocation::{REVOCATIONS_MAX, TENANT_REVOCATIONS_MAX};
use ownership::{Revocation, RevocationTimes};
use tenants::Principal;
use tokio::time::{Instant, sleep, timeout};

use crate::node::Node;
use crate::routing::revocation_codec::{decode_reply, encode_call, reads_revocations};
use crate::session::StopRequest;

/// The interval at which a node looks whether there are revocations that it does not know.
const LOOK: Duration = Duration::from_millis(250);

/// How long the store may take to answer such a look. Then peers are asked.
const LOOK_PATIENCE: Duration = Duration::from_millis(250);

/// How long a peer may take to answer.
const PEER_PATIENCE: Duration = Duration::from_millis(500);

/// The interval at which revocations that have ended are forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// The interval at which a stop request is sent again to a session whose mailbox was full.
const AGAIN: Duration = Duration::from_millis(20);

/// What an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationOrder {
    /// The clients' sessions end, and their credentials do not count.
    Revoke,
    /// The clients' credentials count again.
    Lift,
}

/// The result of an operator's order.
#[derive(Debug)]
pub struct RevocationResult {
    /// Whether the store has acknowledged it. Otherwise this node writes it as soon as it can.
    pub stored: Result<(), cluster::Error>,
    /// The names of the peers that have acknowledged it.
    pub told: Vec<Arc<str>>,
    /// The names of the other nodes, which read it from the store, or from a peer.
    pub untold: Vec<Arc<str>>,
}

/// Why an order was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevocationRefused {
    /// The tenant has as many revocations as it may.
    TenantFull,
    /// All tenants together have as many as they may.
    Full,
}

/// Carries out an operator's order at this node, its peers and the store.
pub(crate) async fn revoke(
    node: &Node,
    tenant: &Arc<str>,
    principals: &[Principal],
    order: RevocationOrder,
) -> Result<RevocationResult, RevocationRefused> {
    let cluster = &node.context.cluster;
    let (list, now_ms) = (cluster.revocations().list(), now_ms());
    let times = |principal: &Principal| list.times(tenant, principal.name());
    let added = principals.iter().filter(|principal| times(principal).is_none()).count();
    if list.bounded_of(tenant, now_ms) + added > TENANT_REVOCATIONS_MAX && added > 0 {
        return Err(RevocationRefused::TenantFull);
    }
    if list.bounded(now_ms) + added > REVOCATIONS_MAX && added > 0 {
        return Err(RevocationRefused::Full);
    }
    let revocation = |principal: &Principal| {
        let before: RevocationTimes = times(principal).unwrap_or_default();
        let times = match order {
            RevocationOrder::Revoke => before.revoked(now_ms),
            RevocationOrder::Lift => before.lifted(now_ms),
        };
        Revocation { tenant: Arc::clone(tenant), principal: principal.name().into(), times }
    };
    let revocations: Vec<_> = principals.iter().map(revocation).collect();
    cluster.revocations().merge(&revocations);
    let told = async {
        let peers = cluster.linked_peers();
        let peers = peers.iter().filter(|peer| reads_revocations(peer.payload_version()));
        let telling = peers.map(async |peer| {
            let news = tell(cluster, peer, &revocations).await;
            news.then(|| peer.incarnation())
        });
        join_all(telling).await.into_iter().flatten().collect::<Vec<_>>()
    };
    let (told, stored) = tokio::join!(told, cluster.write_revocations(&revocations));
    let own = cluster.incarnation();
    let others = cluster.nodes().into_iter().filter(|lease| lease.incarnation != own);
    let (told, untold): (Vec<_>, Vec<_>) =
        others.partition(|lease| told.contains(&lease.incarnation));
    let names = |leases: Vec<store::Lease>| leases.into_iter().map(|lease| lease.name).collect();
    Ok(RevocationResult { stored, told: names(told), untold: names(untold) })
}

/// Tells a peer of revocations, and adds those that the peer sends. Returns whether it answered.
async fn tell(cluster: &Cluster, peer: &Peer, revocations: &[Revocation]) -> bool {
    let known = cluster.revocations();
    let mut calling = peer.call(encode_call(revocations, known.list().fingerprint()));
    let reply = timeout(PEER_PATIENCE, poll_fn(|context| calling.poll_next(context))).await;
    let Ok(Some(Ok(reply))) = reply else { return false };
    let Some((news, _)) = decode_reply(reply) else { return false };
    known.merge(&news);
    true
}

/// Reads the revocations of the store, or of peers while it does not answer, for as long as the node
/// exists.
pub(crate) async fn keep_reading(node: Weak<Node>) {
    let (mut turn, mut forget_at) = (0_usize, Instant::now() + FORGET);
    while let Some(node) = node.upgrade() {
        let cluster = &node.context.cluster;
        if Instant::now() >= forget_at {
            cluster.remove_ended_revocations();
            forget_at = Instant::now() + FORGET;
        }
        let looked = timeout(LOOK_PATIENCE, cluster.read_revocations()).await;
        if !matches!(looked, Ok(Ok(()))) {
            let mut peers = cluster.linked_peers();
            peers.retain(|peer| reads_revocations(peer.payload_version()));
            peers.sort_unstable_by_key(|peer| peer.incarnation().0);
            turn = turn.wrapping_add(1);
            if let Some(peer) = turn.checked_rem(peers.len()).and_then(|turn| peers.get(turn)) {
                // The peer may lack what this node could not write.
                let own = match cluster.has_unwritten_revocations() {
                    true => cluster.revocations().list().all(),
                    false => Vec::new(),
                };
                tell(cluster, peer, &own).await;
            }
        }
        drop(node);
        sleep(LOOK).await;
    }
}

/// Ends the sessions of clients that are revoked, for as long as the node exists.
pub(crate) async fn end_revoked_sessions(node: Weak<Node>) {
    let Some(mut changes) = node.upgrade().map(|node| {
        let mut changes = node.context.cluster.revocations().changes();
        changes.mark_changed();
        changes
    }) else {
        return;
    };
    while changes.changed().await.is_ok() {
        loop {
            let Some(node) = node.upgrade() else { return };
            if tell_revoked_sessions(&node) {
                break;
            }
            drop(node);
            sleep(AGAIN).await;
        }
    }
}

/// Tells the sessions that are older than their client's revocation to end. Returns whether all were told;
/// one whose mailbox is full was not.
fn tell_revoked_sessions(node: &Node) -> bool {
    let list = node.context.cluster.revocations().list();
    if list.is_empty() {
        return true;
    }
    let all_told = Cell::new(true);
    node.registry.for_each(|session| {
        let revoked_ms = list.revoked_ms(session.tenant(), session.principal().name());
        if revoked_ms > session.revoked_ms() && !session.send_stop_request(StopRequest::Revoke) {
            all_told.set(false);
        }
    });
    all_told.get()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use ownership::revocation::KEY_NAME;
    use tenants::ClientName;

    #[test]
    fn the_names_of_clients_with_keys_alone_begin_as_those_whose_revocations_stay() {
        let (issuer, name) = ("https://i.example", "ada");
        let is_key = |client: ClientName<'_>| client.principal().name().starts_with(KEY_NAME);
        assert!(is_key(ClientName::Key { subject: name }));
        assert!(!is_key(ClientName::Subject { issuer, subject: name }));
        assert!(!is_key(ClientName::Client { issuer, id: name }));
    }
}
