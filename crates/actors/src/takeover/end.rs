//! Ends a session that is on no node: it sleeps, or its owner is gone.

use std::sync::Arc;
use std::time::Duration;

use cluster::Cause;
use conversation::Refusal;
use ownership::location::Claimant;
use ownership::tombstones::Tombstone;
use protocol::SessionId;
use store::{Error, Record, RecordStatus};

use super::claim::claim;
use super::find::claimant;
use crate::clock;
use crate::node::Node;

/// Waits for a claim of this session by this node that is in progress. Returns whether there was one.
pub(crate) async fn until_claimed(node: &Node, session: &SessionId) -> bool {
    let Some(claim) = node.claims.of(session) else { return false };
    // The session is at the node that has claimed it, which the caller finds out.
    let _ = claim.outcome().await;
    true
}

/// Claims a session without an owner, and ends it in the store without restoring it.
pub(crate) async fn end_ownerless(
    node: &Arc<Node>,
    session: &SessionId,
    record: &Record,
    cause: Cause,
) -> Result<(), Refusal> {
    if claimant(node, session, cause) == Claimant::Another {
        return Err(Refusal::Unavailable);
    }
    let (claimed, acquired) = claim(node, session, record).await?;
    let context = &node.context;
    let lasts: Duration = context.settings.lifetimes().ended.into();
    let token = claimed.record.owner.token;
    match context.store.end(session, token, lasts).await {
        Ok(()) | Err(Error::Ended | Error::Missing) => {}
        // The record names this node. The next request claims the session again.
        Err(_) => return Err(Refusal::Unavailable),
    }
    context.sleeping_bytes.forget(session);
    if node.has_peers() {
        keep_tombstone(node, session, claimed.record, acquired.failover_generation, lasts);
    }
    Ok(())
}

fn keep_tombstone(
    node: &Node,
    session: &SessionId,
    record: Record,
    generation: u64,
    lasts: Duration,
) {
    let context = &node.context;
    let record = Record { status: RecordStatus::Ended, ..record };
    let now = clock::now();
    let until = now.plus(u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
    // The store may have failed over meanwhile: then the tombstone is due.
    let tombstone = Tombstone::new(session.clone(), record, Some(generation), until.0);
    context
        .tombstones
        .add(tombstone, now, |session| context.lease_snapshot(session).failover_generation);
}
