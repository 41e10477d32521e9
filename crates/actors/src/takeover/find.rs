//! Finds the owner of a session.
//!
//! The node that receives a request for an ownerless session claims it. A node that drains, or that
//! joined a moment ago, has another node claim it instead.

use std::sync::Arc;
use std::time::Duration;

use cluster::{Cause, Peer, SessionLocation};
use conversation::Refusal;
use ownership::location::{self, Claimant};
use ownership::machine::Stabilisation;
use protocol::SessionId;
use store::Record;
use tenants::Principal;

use super::claim::begin_claim;
use crate::node::Node;
use crate::registry;
use crate::session::HandleState;

/// How long a request waits for a session that is leaving this node.
const LEAVING_PATIENCE: Duration = Duration::from_secs(2);
/// The most lookups of a session whose owner changes meanwhile.
const LOOKS: usize = 3;

/// The result of a search for a session.
#[derive(Debug)]
pub(crate) enum Found {
    /// On this node, in its registry.
    Here,
    /// On another node.
    At(Peer),
    /// The session has no owner, and this node must not claim it now. Another node may.
    Ownerless,
    /// The session has no owner, and this node has no free slot. Another node may claim it.
    NoRoom,
    /// The session has ended and was the caller's, or the store holds no record of it.
    Ended,
}

/// The tenant and the principal that a request comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) principal: &'a Principal,
}

/// Finds a session for a caller. A session without an owner is claimed and restored here. A caller
/// that does not own the session gets the same answer as for an unknown id, and the session is not
/// changed.
///
/// [`Refusal::Unavailable`]: a retry may succeed. `fresh`: bypasses the location cache.
pub(crate) async fn find_session(
    node: &Arc<Node>,
    identity: Identity<'_>,
    session: &SessionId,
    fresh: bool,
) -> Result<Found, Refusal> {
    let mut fresh = fresh;
    for _ in 0..LOOKS {
        if is_here(node, identity, session).await? {
            return Ok(Found::Here);
        }
        let waiter = match node.claims.of(session) {
            Some(waiter) => waiter,
            None => match locate(node, session, fresh).await? {
                Located::At(peer) => return Ok(Found::At(peer)),
                Located::Ended(record) if theirs(node, identity, &record).is_some() => {
                    return Ok(Found::Ended);
                }
                Located::Unknown => return Ok(Found::Ended),
                Located::Ended(_) => return Err(Refusal::UnknownSession),
                Located::Ownerless(record, cause) => {
                    // A duplex session ended with its connection; only its tombstone is missing.
                    let Some(revoked_ms) =
                        theirs(node, identity, &record).filter(|_| !record.initialize.is_empty())
                    else {
                        return Err(Refusal::UnknownSession);
                    };
                    if claimant(node, session, cause) == Claimant::Another {
                        return Ok(Found::Ownerless);
                    }
                    let claimant = (identity.principal, revoked_ms);
                    match begin_claim(node, claimant, session, *record, cause)? {
                        Some(waiter) => waiter,
                        None => continue,
                    }
                }
            },
        };
        match waiter.outcome().await {
            Ok(()) => {}
            Err(Refusal::Moved) => fresh = true,
            Err(Refusal::TooManySessions) => return Ok(Found::NoRoom),
            Err(refusal) => return Err(refusal),
        }
    }
    Err(Refusal::Unavailable)
}

/// The node that is to claim a session without an owner.
pub(super) fn claimant(node: &Node, session: &SessionId, cause: Cause) -> Claimant {
    let is_stable = node.context.lease_snapshot(session).stabilisation == Stabilisation::Done;
    let (is_leaving, has_taker) = (node.registry.is_departing(), node.claimant_peer(0).is_some());
    location::claimant(cause, is_leaving, is_stable, has_taker)
}

/// Whether the session is here, for this caller. Waits for a session that is leaving.
async fn is_here(
    node: &Node,
    identity: Identity<'_>,
    session: &SessionId,
) -> Result<bool, Refusal> {
    let until = tokio::time::Instant::now() + LEAVING_PATIENCE;
    loop {
        let gone = node.registry.gone();
        tokio::pin!(gone);
        gone.as_mut().enable();
        let handle = match node.registry.find(identity.tenant, identity.principal, session) {
            registry::Lookup::Here(handle) => handle,
            registry::Lookup::Foreign => return Err(Refusal::UnknownSession),
            registry::Lookup::Absent => return Ok(false),
        };
        match handle.state() {
            HandleState::Open => return Ok(true),
            HandleState::Over => return Err(Refusal::UnknownSession),
            HandleState::Leaving => {}
        }
        drop(handle);
        if tokio::time::timeout_at(until, gone).await.is_err() {
            return Err(Refusal::Unavailable);
        }
    }
}

/// The location of a session that is not in this node's registry.
enum Located {
    At(Peer),
    Ownerless(Box<Record>, Cause),
    /// The session has ended: this is its tombstone.
    Ended(Box<Record>),
    /// The store holds no record of it.
    Unknown,
}

async fn locate(node: &Node, session: &SessionId, fresh: bool) -> Result<Located, Refusal> {
    match node.context.cluster.locate(session, fresh).await {
        Ok(SessionLocation::There(peer)) => Ok(Located::At(peer)),
        Ok(SessionLocation::Here(record)) => Ok(Located::Ownerless(record, Cause::Own)),
        Ok(SessionLocation::Ownerless(record, cause)) => Ok(Located::Ownerless(record, cause)),
        Ok(SessionLocation::Ended(record)) => Ok(Located::Ended(record)),
        Ok(SessionLocation::Unknown) => Ok(Located::Unknown),
        Err(error) => {
            tracing::warn!(?session, %error, "locating a session failed");
            Err(Refusal::Unavailable)
        }
    }
}

/// Whether a record is the caller's: then its principal's last revocation, which the session came after.
/// A session from before that is an unknown one.
fn theirs(node: &Node, identity: Identity<'_>, record: &Record) -> Option<u64> {
    let Identity { tenant, principal } = identity;
    let revoked_ms = node.context.revoked_ms(tenant, principal);
    let is_theirs = || node.context.digests.is_of(record.principal, principal, revoked_ms);
    (*record.tenant == *tenant && is_theirs()).then_some(revoked_ms)
}
