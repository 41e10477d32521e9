//! Keeps a session's record and log in the store, under this owner's token.
//!
//! [`Ownership`] decides which operation is next and what an answer means; the log writer performs
//! the operations. At most one operation is under way. Entries that arrive meanwhile go with the
//! next one, so they reach the store in order and without a hole. Sending an operation again is
//! always safe. The session bounds the entries that wait here: it raises the floor of its log when
//! too many do.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use ownership::machine::{LeaseSnapshot, Op, OpResult, Outcome, Ownership};
use protocol::SessionId;
use store::{Record, State, Store, Token};

use crate::lifetimes::Lifetimes;
use crate::metrics;

/// The one writer of a session's record and log.
pub(crate) struct LogWriter {
    ownership: Ownership,
    pub(crate) lifetimes: Lifetimes,
    /// For the next token that it may have to make: never used before.
    random: u64,
    pending: Option<PendingOperation>,
    /// There may be something to do.
    is_dirty: bool,
    /// The node's newest failover generation when the failover generation of the session was last
    /// looked at.
    newest_failover_generation: u64,
    /// Up to which number the log was held when that was counted last, if it ever was.
    counted: Option<u64>,
}

type PendingOperation = Pin<Box<dyn Future<Output = OpResult> + Send>>;

/// Everything that can be replayed, encoded, and the number of its first entry.
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

    /// Takes note of failovers of the store. `newest`: the node's newest failover generation;
    /// `snapshot` is asked for only where that has changed.
    pub(crate) fn observe(&mut self, newest: u64, snapshot: impl FnOnce() -> LeaseSnapshot) {
        if std::mem::replace(&mut self.newest_failover_generation, newest) != newest {
            self.is_dirty |= self.ownership.observe(snapshot().failover_generation);
        }
    }

    /// May anything be done for the session now, given the generation of the node's lease?
    pub(crate) fn may_act(
        &self,
        lease_generation: Option<u64>,
        snapshot: impl FnOnce() -> LeaseSnapshot,
    ) -> bool {
        // Asked before every step, and the snapshot takes a lock.
        self.ownership.may_act(lease_generation, snapshot)
    }

    /// Is the store known to name this owner since it failed over last?
    pub(crate) fn is_sure(&self) -> bool {
        self.ownership.is_sure()
    }

    /// The token that the session is owned under.
    pub(crate) fn token(&self) -> Token {
        self.ownership.token()
    }

    /// Takes entries to append. To be followed by `poll`, as is all that follows.
    pub(crate) fn push(&mut self, first: u64, floor: u64, entries: Vec<Bytes>) {
        self.counted.get_or_insert(first.saturating_sub(1));
        self.ownership.push(first, floor, entries);
        self.is_dirty = true;
    }

    /// Takes a state to save.
    pub(crate) fn save(&mut self, state: State) {
        self.ownership.save(state);
        self.is_dirty = true;
    }

    /// Gives the session up once everything is held: the last act under its token.
    pub(crate) fn release(&mut self) {
        self.ownership.release();
        self.is_dirty = true;
    }

    /// Ends the session.
    pub(crate) fn end_session(&mut self) {
        self.ownership.end();
        self.is_dirty = true;
    }

    /// What says that the session is over, and the failover generation of the store in which that
    /// was written.
    pub(crate) fn tombstone(&self) -> (Record, u64) {
        (self.ownership.tombstone(), self.ownership.failover_generation())
    }

    /// When to poll again, if nothing happens before.
    pub(crate) fn wake_at(&self) -> Option<u64> {
        self.ownership.wake_at()
    }

    /// Something that matters to the session's record has changed, or a timer has fired.
    pub(crate) fn mark_dirty(&mut self) {
        self.is_dirty = true;
    }

    /// Is an operation under way?
    pub(crate) fn is_busy(&self) -> bool {
        self.pending.is_some()
    }

    /// May there be something to begin?
    pub(crate) fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Goes on, and adds to `outcomes` what has come of it. `snapshot` and `ring` are asked
    /// for only where something is to be done. An operation that takes no waiting, as those
    /// of a store in this process, is done when this returns.
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
                        // Where there is no randomness the same token is tried again.
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
            tracing::warn!(session = ?self.ownership.session(), %error, "the session was not written");
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
