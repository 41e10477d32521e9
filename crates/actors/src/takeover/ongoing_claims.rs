//! The claims of this node in progress. A node has at most one claim of a session at a time:
//! further requests for the session wait for its outcome.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conversation::Refusal;
use protocol::SessionId;
use tokio::sync::watch;

/// The most claims at once; a request that needs a further one is refused as unavailable.
const CLAIMS_MAX: usize = 4_096;

/// The outcome of a claim. Cheap to clone: every waiter gets it.
pub(super) type ClaimOutcome = Result<(), Refusal>;

/// The claims in progress. At most [`CLAIMS_MAX`].
#[derive(Default)]
pub(crate) struct OngoingClaims(Arc<Mutex<Claims>>);

type Claims = HashMap<SessionId, watch::Receiver<Option<ClaimOutcome>>>;

/// The result of an attempt to start a claim.
pub(super) enum Begin {
    /// No other claim of the session was in progress: the caller performs this one.
    Begun(OngoingClaim, ClaimWaiter),
    /// A claim of the session was in progress already.
    Joined(ClaimWaiter),
    /// The session is on this node by now.
    IsHere,
    /// The bound of claims is reached.
    Full,
}

impl OngoingClaims {
    /// The claim of this session in progress, if any.
    pub(super) fn of(&self, session: &SessionId) -> Option<ClaimWaiter> {
        lock(&self.0).get(session).cloned().map(ClaimWaiter)
    }

    /// Starts a claim of a session. `is_here`: whether the session is on this node.
    pub(super) fn begin_or_join(
        &self,
        session: &SessionId,
        is_here: impl FnOnce() -> bool,
    ) -> Begin {
        let mut claims = lock(&self.0);
        let is_full = claims.len() >= CLAIMS_MAX;
        let entry = match claims.entry(session.clone()) {
            Entry::Occupied(claim_entry) => {
                return Begin::Joined(ClaimWaiter(claim_entry.get().clone()));
            }
            Entry::Vacant(entry) => entry,
        };
        // A claim is removed only after its session is registered, so this check under the lock
        // misses none.
        if is_here() {
            return Begin::IsHere;
        }
        if is_full {
            return Begin::Full;
        }
        let (outcome, waiter) = watch::channel(None);
        entry.insert(waiter.clone());
        let entry = RemoveOnDrop { claims: Arc::clone(&self.0), session: session.clone() };
        Begin::Begun(OngoingClaim { outcome, entry }, ClaimWaiter(waiter))
    }
}

/// A claim in progress. Dropping it removes its entry.
pub(super) struct OngoingClaim {
    outcome: watch::Sender<Option<ClaimOutcome>>,
    entry: RemoveOnDrop,
}

impl OngoingClaim {
    /// Removes the claim and sends its outcome to every waiter.
    pub(super) fn finish(self, outcome: ClaimOutcome) {
        drop(self.entry);
        // The send fails if no request waits for the claim any more.
        let _ = self.outcome.send(Some(outcome));
    }
}

struct RemoveOnDrop {
    claims: Arc<Mutex<Claims>>,
    session: SessionId,
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        lock(&self.claims).remove(&self.session);
    }
}

/// Waits for the outcome of a claim.
pub(super) struct ClaimWaiter(watch::Receiver<Option<ClaimOutcome>>);

impl ClaimWaiter {
    pub(super) async fn outcome(mut self) -> ClaimOutcome {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Err(Refusal::Unavailable)),
            // The task that claimed the session was dropped without an outcome.
            Err(_) => Err(Refusal::Unavailable),
        }
    }
}

/// No code panics under the lock, so poisoning is ignored.
fn lock(claims: &Mutex<Claims>) -> MutexGuard<'_, Claims> {
    claims.lock().unwrap_or_else(PoisonError::into_inner)
}
