//! The record names a node as owner that does not have the session: the answer to its claim was
//! lost.

use std::time::Duration;

use crate::support::nodes::{Common, Node};
use crate::support::wait_until;
use actors::Caller;
use store::{Expected, Owner, RecordStatus};

/// A session whose record names the second of three nodes as its owner, and which no node has.
async fn named() -> ([Node; 3], Caller) {
    let nodes: [Node; 3] = Common::default().nodes().await;
    let [owner, named, _] = &nodes;
    let caller = owner.session_of("2025-11-25").await;
    owner.handle.drain(Duration::from_secs(5)).await;
    let record = owner.store.read(&caller.session).await.unwrap().unwrap();
    assert_eq!(record.status, RecordStatus::Released);
    let new = Owner { token: record.owner.token.next(7), node: named.cluster.incarnation() };
    let claim =
        owner.store.claim(&caller.session, Expected::Released, new, None, Duration::from_secs(60));
    claim.await.unwrap();
    // No request for it reaches the first node.
    let leaves = |node: &Node| node.cluster.nodes().iter().any(|lease| lease.draining);
    wait_until(|| nodes.iter().all(leaves)).await;
    (nodes, caller)
}

#[actix_rt::test]
async fn a_session_whose_claim_was_lost_is_claimed_by_the_node_that_its_record_names() {
    let ([_owner, named, other], caller) = named().await;
    other.check_call(&caller, 1).await;
    assert_eq!((named.handle.sessions(), other.handle.sessions()), (1, 0));
    named.check_call(&caller, 2).await;
}

#[actix_rt::test]
async fn a_session_whose_claim_was_lost_moves_when_the_named_node_leaves() {
    for asks_the_other in [true, false] {
        let ([_owner, named, other], caller) = self::named().await;
        named.handle.drain(Duration::from_secs(5)).await;
        // As late as possible: the node accepts no session any more.
        named.handle.close();
        let asked = if asks_the_other { &other } else { &named };
        asked.check_call(&caller, 1).await;
        assert_eq!((named.handle.sessions(), other.handle.sessions()), (0, 1));
        named.check_call(&caller, 2).await;
    }
}
