//! Claims a session without an owner, and starts it on this node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{Cause, Error};
use conversation::{Refusal, Unreadable};
use ownership::location::Claimant;
use ownership::machine::Acquired;
use protocol::{Revision, SessionId};
use store::{Claimed, Record, Token};
use telemetry::Spanned;
use tenants::Principal;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::find::claimant;
use super::ongoing_claims::{Begin, ClaimOutcome, ClaimWaiter};
use crate::clock::{self, Seldom};
use crate::metrics::{self, Failure};
use crate::node::Node;
use crate::registry::Slot;
use crate::session::{ClaimedSession, restore_session};

/// The longest time for a claim: longer than the timeout of the store.
const CLAIM_PATIENCE: Duration = Duration::from_secs(10);

/// Starts to claim a session for its principal, after whose last revocation it was opened, or joins the claim in progress. `None`: the session is on this node
/// by now.
pub(super) fn begin_claim(
    node: &Arc<Node>,
    (principal, revoked_ms): (&Principal, u64),
    session: &SessionId,
    record: Record,
    cause: Cause,
) -> Result<Option<ClaimWaiter>, Refusal> {
    let (claim_entry, waiter) =
        match node.claims.begin_or_join(session, || node.registry.knows(session)) {
            Begin::Begun(claim_entry, waiter) => (claim_entry, waiter),
            Begin::Joined(waiter) => return Ok(Some(waiter)),
            Begin::IsHere => return Ok(None),
            Begin::Full => {
                metrics::count_failed_takeover(Failure::NoRoom);
                return Err(Refusal::Unavailable);
            }
        };
    let (node, principal, session) = (Arc::clone(node), principal.clone(), session.clone());
    // The claim runs in a task of its own, so that it is completed if its caller is dropped.
    tokio::spawn(Spanned::of_current(Box::pin(async move {
        let claim = take_over(&node, &session, (principal, revoked_ms), &record, cause);
        let outcome = timeout(CLAIM_PATIENCE, claim).await.unwrap_or_else(|_| {
            metrics::count_failed_takeover(Failure::NotNow);
            Err(Refusal::Unavailable)
        });
        claim_entry.finish(outcome);
    })));
    Ok(Some(waiter))
}

/// Claims a session and starts it here.
async fn take_over(
    node: &Arc<Node>,
    session: &SessionId,
    (principal, revoked_ms): (Principal, u64),
    record: &Record,
    cause: Cause,
) -> ClaimOutcome {
    let began = Instant::now();
    // A session that this node cannot serve is left to a node that can.
    let revision = Revision::named(&record.revision);
    let (Some(revision), Some(_)) = (revision, node.context.backends.of(&record.tenant)) else {
        metrics::count_failed_takeover(Failure::Unreadable);
        tracing::error!(
            ?session, tenant = %record.tenant, revision = %record.revision,
            "taking over a session failed: this node does not know its tenant or revision"
        );
        return Err(Refusal::Unavailable);
    };
    if claimant(node, session, cause) == Claimant::ThisForAnother && node.has_peers() {
        return pass_on(node, session, record).await;
    }
    let slot = match take_slot(node, record) {
        Ok(slot) => slot,
        // No other node may claim the session until this node has released it.
        Err(Refusal::TooManySessions) if cause == Cause::Own && node.has_peers() => {
            return pass_on(node, session, record).await;
        }
        Err(refusal) => return Err(refusal),
    };
    let (claimed, acquired) = claim(node, session, record).await?;
    let token = claimed.record.owner.token;
    let tenant = Arc::clone(&claimed.record.tenant);
    let claim = ClaimedSession {
        session: session.clone(),
        principal,
        revoked_ms,
        revision,
        claimed,
        acquired,
        slot,
    };
    let (sender, restored) = oneshot::channel();
    let restoring = Arc::clone(node);
    let is_begun = node.arbiters.spawn(move || {
        // The send fails if the claim has timed out. The session is restored nevertheless, and the
        // next request finds it.
        let _ = sender.send(restore_session(&restoring.context, &restoring.registry, claim));
    });
    match restored.await {
        Ok(Ok(())) => {
            metrics::count_takeover(cause);
            metrics::TAKEOVER_SECONDS.observe(began.elapsed().as_secs_f64());
            tracing::info!(tenant = &*tenant, ?session, ?cause, "session taken over");
            return Ok(());
        }
        Ok(Err(error @ Unreadable::Corrupt(_))) => {
            metrics::count_failed_takeover(Failure::Unreadable);
            return Err(end_corrupt(node, session, token, error).await);
        }
        Ok(Err(error)) => tracing::error!(?session, %error, "restoring a session failed"),
        Err(_) => {
            tracing::error!(?session, is_begun, "restoring a session failed: no thread accepted it")
        }
    }
    metrics::count_failed_takeover(Failure::Unreadable);
    // Released, since another node may be able to restore it.
    if let Err(error) = release(node, session, token).await {
        tracing::warn!(?session, %error, "releasing a session that cannot be served failed");
    }
    Err(Refusal::Unavailable)
}

/// Ends a session that no node can restore, so that its client creates another one. If the end
/// cannot be written, the session is claimed and ended again with the next request.
async fn end_corrupt(node: &Node, session: &SessionId, token: Token, error: Unreadable) -> Refusal {
    static LOGGED: Seldom = Seldom::new();
    if LOGGED.may_log(clock::now()) {
        tracing::error!(?session, %error, "session ended: its record or log cannot be read");
    }
    let tombstone = node.context.settings.lifetimes().ended.into();
    match node.context.store.end(session, token, tombstone).await {
        Ok(()) | Err(store::Error::Ended | store::Error::Missing) => Refusal::UnknownSession,
        Err(_) => Refusal::Unavailable,
    }
}

/// Claims a session whose record names this node, and releases it at once: this node drains or is
/// full, and no other node may claim the session before that. The next owner ends the pending
/// requests with an error, or runs them again.
async fn pass_on(node: &Node, session: &SessionId, record: &Record) -> ClaimOutcome {
    let (claimed, _) = claim(node, session, record).await?;
    if let Err(error) = release(node, session, claimed.record.owner.token).await {
        tracing::warn!(?session, %error, "passing a session on failed; retrying on request");
        return Err(Refusal::Unavailable);
    }
    metrics::RELEASED.inc();
    tracing::info!(?session, "session passed on: released for another node");
    Err(Refusal::Moved)
}

async fn release(node: &Node, session: &SessionId, token: Token) -> Result<(), store::Error> {
    let lasts = node.context.settings.lifetimes().released.into();
    let at = node.context.lease_snapshot(session).primary;
    node.context.store.release(session, token, at, lasts).await
}

fn take_slot(node: &Node, record: &Record) -> Result<Slot, Refusal> {
    let slot = node.registry.take_slot_for_restored(&record.tenant);
    // A client with a session is not refused for lack of a slot: another node is requested to claim
    // the session, and the request is held meanwhile.
    slot.inspect_err(|_| metrics::count_failed_takeover(Failure::NoRoom))
}

/// Claims a session.
pub(super) async fn claim(
    node: &Node,
    session: &SessionId,
    record: &Record,
) -> Result<(Claimed, Acquired), Refusal> {
    let context = &node.context;
    let lease_generation = context.valid_lease_generation().ok_or(Refusal::Unavailable)?;
    let acquired = Acquired {
        lease_generation,
        failover_generation: context.lease_snapshot(session).failover_generation,
    };
    let ttl = context.settings.record_ttl();
    match context.cluster.claim(session, record, ttl).await {
        Ok(claimed) => Ok((claimed, acquired)),
        Err(Error::Taken) => {
            metrics::count_failed_takeover(Failure::Taken);
            Err(Refusal::Moved)
        }
        Err(error) => {
            metrics::count_failed_takeover(Failure::NotNow);
            tracing::warn!(?session, %error, "claiming a session failed");
            Err(Refusal::Unavailable)
        }
    }
}
