//! Carries demand for limits of the cluster to their owners, and shares back: one message to each peer in
//! an interval, several if there are many limits, and none while no limit is in use.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Weak;

use budget::limit::{INTERVAL, Member, VALID, owner_of};
use cluster::{Cluster, Peer};
use ownership::Incarnation;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::messages::{self, RequestKind};
use super::{LIMITS, messages::Request};
use crate::limits::{NodeLimits, Round};
use crate::metrics;
use crate::node::Node;

/// The live nodes that share limits.
pub(super) struct Members {
    pub(super) all: Vec<Member>,
    /// Those that own limits.
    owners: Vec<u64>,
}

impl Members {
    pub(super) fn of(cluster: &Cluster) -> Self {
        let own = cluster.incarnation();
        let mut members = Self { all: Vec::new(), owners: Vec::new() };
        for lease in cluster.nodes() {
            let peer = cluster.reachable(lease.incarnation);
            let version = peer.as_ref().and_then(Peer::payload_version);
            // A node of an earlier program limits nothing.
            if version.is_some_and(|version| version < LIMITS) {
                continue;
            }
            let node = lease.incarnation.0;
            // No link leads to a node without an address: it comes by itself.
            let has_address = !lease.address.is_empty();
            let is_linked = lease.incarnation == own || peer.is_some() || !has_address;
            members.all.push(Member { node, is_linked });
            if has_address || lease.incarnation == own {
                members.owners.push(node);
            }
        }
        if !members.all.iter().any(|member| member.node == own.0) {
            members.all.push(Member { node: own.0, is_linked: true });
        }
        members
    }

    fn owner(&self, tenant: u64) -> Option<u64> {
        owner_of(tenant, self.owners.iter().copied())
    }
}

/// Shares limits for as long as the node exists.
pub(crate) async fn share_limits(node: Weak<Node>) {
    let Some(limits) = node.upgrade().map(|node| node.limits.clone()) else { return };
    let mut next = Instant::now() + INTERVAL;
    let mut reported: HashMap<u64, Instant> = HashMap::new();
    // When a share is asked for that requests wait for, if its owner got a message just before.
    let mut delayed: Option<Instant> = None;
    loop {
        let only_new = tokio::select! {
            () = sleep_until(next) => false,
            () = sleep_until(delayed.unwrap_or(next)), if delayed.is_some() => true,
            () = limits.share_wanted() => true,
        };
        delayed = None;
        let Some(node) = node.upgrade() else { return };
        let cluster = &node.context.cluster;
        let (own, members) = (cluster.incarnation().0, Members::of(cluster));
        if !only_new {
            limits.note_members(&members.all);
            next = (next + INTERVAL).max(Instant::now() + INTERVAL / 2);
            reported.retain(|_, at| at.elapsed() < VALID);
            if limits.is_unused() {
                limits.show();
                continue;
            }
            limits.set_sessions(|| node.registry.sessions_by_tenant());
        }
        if !only_new {
            limits.begin_round(members.all.len());
            limits.show();
        }
        // Requests wait for half an interval at most until a message is sent.
        let mut owner = |tenant| {
            let owner = members.owner(tenant)?;
            let at = reported.get(&owner).map(|at| *at + INTERVAL / 2);
            let until = at.filter(|until| only_new && owner != own && Instant::now() < *until);
            delayed = until.into_iter().chain(delayed).min();
            until.is_none().then_some(owner)
        };
        for (owner, unreported) in limits.unreported(only_new, &mut owner) {
            let Some(round) = limits.report(&unreported, own) else { continue };
            if owner == own {
                if let Some(shares) = limits.answer(round.message.clone(), &members.all) {
                    limits.apply(&round, shares);
                }
            } else {
                reported.insert(owner, Instant::now());
                match cluster.reachable(Incarnation(owner)) {
                    Some(peer) => drop(tokio::spawn(report(limits.clone(), peer, round))),
                    None => metrics::LIMIT_REPORTS[1].inc(),
                }
            }
            // A node with many limits has several messages, and this thread serves clients.
            tokio::task::yield_now().await;
        }
        drop(node);
        if only_new {
            // However many new limits come, there are few messages.
            sleep(INTERVAL / 50).await;
        }
    }
}

/// Sends the demand to the owner, and applies the shares. Ends when the shares would not be valid any more.
async fn report(limits: NodeLimits, peer: Peer, round: Round) {
    let request = Request::from(RequestKind::Limits(round.message.clone()));
    let mut call = peer.call(messages::encode(&request));
    let answer = timeout(VALID, poll_fn(|context| call.poll_next(context)));
    let outcome = match answer.await {
        Ok(Some(Ok(shares))) => {
            limits.apply(&round, shares);
            0
        }
        Ok(_) | Err(_) => 1,
    };
    metrics::LIMIT_REPORTS[outcome].inc();
}
