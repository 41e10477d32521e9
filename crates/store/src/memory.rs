//! The store of a single node. All data is in the memory of this process and is lost with it.
//!
//! Sessions are spread over shards, each behind a lock that is held for one short
//! operation and never across an await. No task runs in the background: each operation also
//! checks a few sessions for expiry, and [`Store::sweep`] checks many.

#[cfg(test)]
mod interleavings;
mod leases;
mod log;
mod notes;
mod shard;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use protocol::SessionId;

use self::leases::Leases;
use self::notes::{Full, Notes};
use self::shard::Shard;
use crate::{
    Appended, Batch, Claimed, Error, Expected, Incarnation, Lease, Marking, NoteKey, Owner,
    Presence, PrimaryId, Record, Renewed, Revocation, RevocationGeneration, RevocationList,
    ScanCursor, Scanned, State, StateExtension, Store, Token,
};

/// Number of shards: enough that threads rarely contend for one lock.
const SHARDS: usize = 16;

/// How many sessions an operation checks for expiry. Above one, so that expired sessions are
/// removed faster than sessions are created.
const CHECKS_PER_OPERATION: usize = 4;

/// How many sessions of each shard a sweep checks for expiry: less than 1 ms of work.
const CHECKS_PER_SWEEP: usize = 1_000;

/// Returns the time since a fixed moment. It never decreases.
type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// The [`Store`] of a single node, in its memory.
///
/// The number of sessions is bounded by the callers that create them.
pub struct Memory {
    clock: Clock,
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    leases: Mutex<Leases>,
    revocations: Mutex<(RevocationGeneration, RevocationList)>,
    notes: Mutex<Notes>,
}

impl Memory {
    /// The most tombstones that a store keeps. At the bound the oldest ones are dropped.
    pub const TOMBSTONES_MAX: usize = shard::TOMBSTONES_MAX * SHARDS;

    /// Creates an empty store. `clock` returns the time since a fixed moment.
    pub fn with_clock(clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self {
            clock: Box::new(clock),
            hasher: RandomState::new(),
            shards: Default::default(),
            leases: Mutex::default(),
            revocations: Mutex::default(),
            notes: Mutex::default(),
        }
    }

    fn shard(&self, session: &SessionId) -> MutexGuard<'_, Shard> {
        let shard = self.hasher.hash_one(session) as usize % SHARDS;
        lock(&self.shards[shard])
    }

    /// Locks the session's shard for a write, after removing a few expired sessions from it.
    fn shard_at(&self, session: &SessionId, now: u64) -> MutexGuard<'_, Shard> {
        let mut shard = self.shard(session);
        shard.sweep(now, CHECKS_PER_OPERATION);
        shard
    }

    fn now(&self) -> u64 {
        millis((self.clock)())
    }

    /// The current time, and the time at which a write with this `ttl` expires.
    fn span(&self, ttl: Duration) -> (u64, u64) {
        let now = self.now();
        (now, now.saturating_add(millis(ttl)))
    }
}

impl Default for Memory {
    /// An empty store on the process's clock.
    fn default() -> Self {
        let start = Instant::now();
        Self::with_clock(move || start.elapsed())
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl Store for Memory {
    async fn create(
        &self,
        session: &SessionId,
        record: Record,
        ttl: Duration,
    ) -> Result<(), Error> {
        let span = self.span(ttl);
        self.shard_at(session, span.0).create(session, record, span)
    }

    async fn read(&self, session: &SessionId) -> Result<Option<Record>, Error> {
        Ok(self.shard(session).read(session, self.now()))
    }

    async fn read_log(&self, session: &SessionId) -> Result<Vec<(u64, Bytes)>, Error> {
        Ok(self.shard(session).read_log(session, self.now()))
    }

    async fn claim(
        &self,
        session: &SessionId,
        expected: Expected,
        new: Owner,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<Claimed, Error> {
        is_here(at)?;
        let span = self.span(ttl);
        self.shard_at(session, span.0).claim(session, expected, new, span)
    }

    async fn append(&self, batch: Batch) -> Result<Appended, Error> {
        let span = self.span(batch.ttl);
        self.shard_at(&batch.session, span.0).append(batch, span)
    }

    async fn reassert(&self, record: Record, ring: Batch) -> Result<Appended, Error> {
        let span = self.span(ring.ttl);
        self.shard_at(&ring.session, span.0).reassert(record, ring, span)
    }

    async fn save(&self, session: &SessionId, token: Token, state: State) -> Result<u64, Error> {
        let now = self.now();
        self.shard_at(session, now).save(session, token, state, now)
    }

    async fn extend_state(
        &self,
        session: &SessionId,
        token: Token,
        extension: StateExtension,
    ) -> Result<u64, Error> {
        let now = self.now();
        self.shard_at(session, now).extend_state(session, token, extension, now)
    }

    async fn release(
        &self,
        session: &SessionId,
        token: Token,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<(), Error> {
        is_here(at)?;
        let span = self.span(ttl);
        self.shard_at(session, span.0).release(session, token, span)
    }

    async fn end(&self, session: &SessionId, token: Token, ttl: Duration) -> Result<(), Error> {
        let span = self.span(ttl);
        self.shard_at(session, span.0).end(session, token, span)
    }

    async fn renew(&self, lease: Lease, ttl: Duration) -> Result<Renewed, Error> {
        let was_there = lock(&self.leases).renew(lease, self.span(ttl))?;
        Ok(Renewed { was_there, revocations: lock(&self.revocations).0 })
    }

    async fn leave(&self, incarnation: Incarnation, ttl: Duration) -> Result<(), Error> {
        lock(&self.leases).leave(incarnation, self.span(ttl));
        Ok(())
    }

    async fn nodes(&self) -> Result<Vec<Lease>, Error> {
        Ok(lock(&self.leases).live(self.now()).cloned().collect())
    }

    async fn presence(&self, incarnation: Incarnation) -> Result<Presence, Error> {
        Ok(lock(&self.leases).presence(incarnation, self.now()))
    }

    async fn mark_dead(
        &self,
        incarnation: Incarnation,
        by: Incarnation,
        also_dead: &[Incarnation],
        seen: Option<u64>,
        ttl: Duration,
    ) -> Result<Marking, Error> {
        lock(&self.leases).mark_dead(incarnation, by, also_dead, seen, self.span(ttl))
    }

    async fn revoke(
        &self,
        revocations: &[Revocation],
        now_ms: u64,
    ) -> Result<RevocationGeneration, Error> {
        let (generation, list) = &mut *lock(&self.revocations);
        if list.merge_all(revocations) {
            list.remove_ended(now_ms);
            // This store loses nothing, so the counter tells generations apart.
            *generation = generation.next(0);
        }
        Ok(*generation)
    }

    async fn revocations(&self) -> Result<(RevocationGeneration, RevocationList), Error> {
        Ok(lock(&self.revocations).clone())
    }

    async fn revocation_generation(&self) -> Result<RevocationGeneration, Error> {
        Ok(lock(&self.revocations).0)
    }

    /// A page is a shard.
    async fn scan(&self, from: ScanCursor, _: usize) -> Result<Scanned, Error> {
        let Some(shard) = self.shards.get(usize::from(from.part)) else {
            return Ok(Scanned::default());
        };
        let sessions = lock(shard).sessions(self.now());
        let part = from.part + 1;
        let next = ScanCursor { part, position: 0 };
        Ok(Scanned { sessions, next: (usize::from(part) < SHARDS).then_some(next) })
    }

    async fn note(&self, key: &NoteKey) -> Result<Option<Bytes>, Error> {
        Ok(lock(&self.notes).find(key, self.now()))
    }

    async fn put_note(&self, key: &NoteKey, note: Bytes, ttl: Duration) -> Result<(), Error> {
        let now = self.now();
        lock(&self.notes).put(*key, note, now.saturating_add(millis(ttl)), now).map_err(too_many)
    }

    async fn add_note(&self, key: &NoteKey, note: Bytes, ttl: Duration) -> Result<bool, Error> {
        let (now, mut notes) = (self.now(), lock(&self.notes));
        if let Some(present) = notes.find(key, now) {
            return Ok(present == note);
        }
        notes.put(*key, note, now.saturating_add(millis(ttl)), now).map_err(too_many)?;
        Ok(true)
    }

    async fn take_note(&self, key: &NoteKey) -> Result<Option<Bytes>, Error> {
        Ok(lock(&self.notes).take(key, self.now()))
    }

    async fn sweep(&self) -> Result<usize, Error> {
        let now = self.now();
        Ok(self.shards.iter().map(|shard| lock(shard).sweep(now, CHECKS_PER_SWEEP)).sum())
    }
}

fn too_many(Full: Full) -> Error {
    Error::Unavailable(io::Error::other("the store has too many notes"))
}

/// This store has one primary, which never changes.
fn is_here(at: Option<PrimaryId>) -> Result<(), Error> {
    if at.is_none_or(|at| at == PrimaryId(0)) {
        return Ok(());
    }
    let why = "the operation names another primary than this store's";
    Err(Error::Unavailable(io::Error::other(why)))
}

/// Locks also a poisoned mutex: operations check first and write last, so a panic leaves a
/// consistent shard.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
