//! The record says that a session is at a node, and that node never learned of it: the answer
//! to its claim was lost.

use std::time::Duration;

use crate::support::nodes::{Common, Node};
use crate::support::until;
use actors::Caller;
use store::{Expected, Owner, RecordStatus};

/// A session whose record names the second of three nodes, and which lives at none.
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
    // Nobody asks the first for it.
    let leaves = |node: &Node| node.cluster.nodes().iter().any(|lease| lease.draining);
    until(|| nodes.iter().all(leaves)).await;
    (nodes, caller)
}

#[actix_rt::test]
async fn a_session_that_its_node_never_learned_of_is_taken_up_there_when_others_ask_for_it() {
    let ([_owner, named, other], caller) = named().await;
    other.works(&caller, 1).await;
    assert_eq!((named.handle.sessions(), other.handle.sessions()), (1, 0));
    named.works(&caller, 2).await;
}

#[actix_rt::test]
async fn a_session_that_its_node_never_learned_of_goes_on_elsewhere_when_that_node_leaves() {
    for asks_the_other in [true, false] {
        let ([_owner, named, other], caller) = self::named().await;
        named.handle.drain(Duration::from_secs(5)).await;
        // As late as it can be: nothing is taken here any more.
        named.handle.close();
        let asked = if asks_the_other { &other } else { &named };
        asked.works(&caller, 1).await;
        assert_eq!((named.handle.sessions(), other.handle.sessions()), (0, 1));
        named.works(&caller, 2).await;
    }
}
