//! Writes a session's record and log to the store, under this owner's token.
//!
//! [`Ownership`] decides which operation is next and what a result means; the log writer performs
//! the operations. At most one operation is in progress. Entries that arrive meanwhile go with the
//! next one, so they reach the store in order and without a gap. Repeating an operation is always
//! safe. The session bounds the entries that wait here: it raises the floor of its log when there
//! are too many.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use conversation::StateChange;
use ownership::machine::{LeaseSnapshot, Op, OpResult, Outcome, Ownership};
use protocol::SessionId;
use store::{Record, Store, Token};

use crate::lifetimes::Lifetimes;
use crate::metrics;

/// The only writer of a session's record and log.
pub(crate) struct LogWriter {
    ownership: Ownership,
    pub(crate) lifetimes: Lifetimes,
    /// The random part of the next token, which was never used before.
    random: u64,
    pending: Option<PendingOperation>,
    /// Whether an operation may be due.
    is_dirty: bool,
    /// The node's newest failover generation when the one of this session was last read.
    newest_failover_generation: u64,
    /// The number of the last acknowledged entry, when it was last counted.
    counted: Option<u64>,
}

type PendingOperation = Pin<Box<dyn Future<Output = OpResult> + Send>>;

/// The entries that can be replayed, encoded, and the number of the first one.
pub(crate) type Ring = (u64, Vec<Bytes>);

impl LogWriter {
    pub(crate) fn new(ownership: Ownership, lifetimes: Lifetimes, random: u64) -> Self {
        Self {
            ownership,
            lifetimes,
            random,
            pending: None,
            is_dirty: true,
            newest_failover_generation: 0,
            counted: None,
        }
    }

    /// Observes failovers of the store. `newest`: the node's newest failover generation. `snapshot`
    /// is called only if that has changed.
    pub(crate) fn observe(&mut self, newest: u64, snapshot: impl FnOnce() -> LeaseSnapshot) {
        if std::mem::replace(&mut self.newest_failover_generation, newest) != newest {
            self.is_dirty |= self.ownership.observe(snapshot().failover_generation);
        }
    }

    /// Whether the node may act for the session now, with this lease generation.
    pub(crate) fn may_act(
        &self,
        lease_generation: Option<u64>,
        snapshot: impl FnOnce() -> LeaseSnapshot,
    ) -> bool {
        // Checked before every step, while the snapshot takes a lock.
        self.ownership.may_act(lease_generation, snapshot)
    }

    /// Whether the store has confirmed this owner since its last failover.
    pub(crate) fn is_sure(&self) -> bool {
        self.ownership.is_sure()
    }

    /// The token of this owner.
    pub(crate) fn token(&self) -> Token {
        self.ownership.token()
    }

    /// Adds entries to append. Call `poll` afterwards, as after the methods below.
    pub(crate) fn push(&mut self, first: u64, floor: u64, entries: Vec<Bytes>) {
        self.counted.get_or_insert(first.saturating_sub(1));
        self.ownership.push_entries(first, floor, entries);
        self.is_dirty = true;
    }

    /// Adds a change of the state to save.
    pub(crate) fn save(&mut self, version: u64, change: StateChange) {
        self.ownership.save_state(version, change);
        self.is_dirty = true;
    }

    /// Releases the session once all entries are stored: the last operation under its token.
    pub(crate) fn release(&mut self) {
        self.ownership.release_session();
        self.is_dirty = true;
    }

    /// Ends the session in the store.
    pub(crate) fn end_session(&mut self) {
        self.ownership.end_session();
        self.is_dirty = true;
    }

    /// The tombstone of the session, and the failover generation in which it was written.
    pub(crate) fn tombstone(&self) -> (Record, u64) {
        (self.ownership.tombstone(), self.ownership.failover_generation())
    }

    /// The time of the next poll, if no event comes first.
    pub(crate) fn wake_at(&self) -> Option<u64> {
        self.ownership.wake_at()
    }

    /// Marks the writer dirty: the lease, the store or a timer has changed.
    pub(crate) fn mark_dirty(&mut self) {
        self.is_dirty = true;
    }

    /// Whether an operation is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether an operation may be due.
    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Performs the due operations and appends their outcomes. `snapshot` and `ring` are called
    /// only if an operation may be due. An operation that completes at once, as in a store in this
    /// process, is done when this returns.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        store: &Arc<dyn Store>,
        snapshot: impl Fn() -> LeaseSnapshot,
        ring: impl Fn() -> Ring,
        outcomes: &mut Vec<Outcome>,
    ) {
        loop {
            let pending = match &mut self.pending {
                Some(pending) => pending,
                _ if !self.is_dirty => return,
                none => {
                    let Some(op) = self.ownership.next(&snapshot(), &ring, self.random) else {
                        self.is_dirty = false;
                        return;
                    };
                    if matches!(op, Op::Claim { .. }) {
                        // Without random bytes the same token is used again.
                        self.random = getrandom::u64().unwrap_or(self.random);
                    }
                    none.insert(perform_operation(
                        store,
                        self.ownership.session(),
                        op,
                        self.lifetimes,
                    ))
                }
            };
            let Poll::Ready(result) = pending.as_mut().poll(context) else { return };
            self.pending = None;
            self.count_failure(&result);
            let result = self.ownership.completed(&snapshot(), result);
            result.iter().for_each(|outcome| self.count(*outcome));
            outcomes.extend(result);
        }
    }

    fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Through(through) => {
                let before = self.counted.replace(through).unwrap_or(through);
                metrics::LOG_ENTRIES.inc_by(through.saturating_sub(before));
            }
            Outcome::Released => metrics::RELEASED.inc(),
            Outcome::Reclaimed(_) => metrics::RECLAIMED.inc(),
            Outcome::Saved(_) | Outcome::Deposed | Outcome::Ended => {}
        }
    }

    fn count_failure(&self, result: &OpResult) {
        let error = match result {
            OpResult::Appended(result) => result.as_ref().err(),
            OpResult::Saved(result) => result.as_ref().err(),
            OpResult::Claimed(result) => result.as_ref().err(),
            OpResult::Done(result) => result.as_ref().err(),
        };
        if let Some(error) = error {
            metrics::LOG_RETRIES.inc();
            tracing::warn!(session = ?self.ownership.session(), %error, "session write failed; retrying");
        }
    }
}

fn perform_operation(
    store: &Arc<dyn Store>,
    session: &SessionId,
    op: Op,
    lifetimes: Lifetimes,
) -> PendingOperation {
    let (store, session) = (Arc::clone(store), session.clone());
    match op {
        Op::Append(batch) => Box::pin(async move { OpResult::Appended(store.append(batch).await) }),
        Op::Reassert(record, ring) => {
            Box::pin(async move { OpResult::Appended(store.reassert(record, ring).await) })
        }
        Op::Save { token, state } => {
            Box::pin(async move { OpResult::Saved(store.save(&session, token, state).await) })
        }
        Op::ExtendState { token, extension } => Box::pin(async move {
            OpResult::Saved(store.extend_state(&session, token, extension).await)
        }),
        Op::Claim { expected, new, at } => Box::pin(async move {
            OpResult::Claimed(
                store.claim(&session, expected, new, at, lifetimes.owned.into()).await,
            )
        }),
        Op::Release { token, at } => Box::pin(async move {
            OpResult::Done(store.release(&session, token, at, lifetimes.released.into()).await)
        }),
        Op::End { token } => Box::pin(async move {
            OpResult::Done(store.end(&session, token, lifetimes.ended.into()).await)
        }),
    }
}
