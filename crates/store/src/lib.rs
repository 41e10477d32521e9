//! The state that all nodes must agree on: session records, owners, logs, leases.
//!
//! A [`Store`] is the only shared part of a cluster. It makes no decisions: it compares
//! tokens, keeps each log free of duplicates, holes and disorder, and rejects writes under a
//! token that is no longer the owner's. It never decodes an entry, a state or a principal.
//!
//! The `contract` module states the guarantees of every implementation as tests, which run on
//! each one. [`Memory`] is the store of a single node, [`redis::Redis`] of a cluster.

#[cfg(any(test, feature = "contract"))]
pub mod contract;
#[cfg(any(test, feature = "layer"))]
mod layer;
mod memory;
#[cfg(feature = "redis")]
mod metrics;
#[cfg(feature = "redis")]
pub mod redis;
mod scan;

use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;

#[cfg(any(test, feature = "layer"))]
pub use layer::StoreLayer;
pub use memory::Memory;
pub use ownership::{
    Appended, Batch, Claimed, Digest, Error, Expected, FORMER_MAX, Incarnation, Lease, Marking,
    Owner, Presence, Primary, PrimaryId, Record, RecordStatus, Renewed, Revocation,
    RevocationGeneration, RevocationList, RevocationTimes, State, StateBytes, StateExtension,
    Token,
};
pub use scan::{NoCursor, ScanCursor, Scanned};

/// The key of a note: bytes that belong to no session, and that expire. It is not to be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NoteKey(pub [u8; 32]);

/// Prints nothing of the key.
impl std::fmt::Debug for NoteKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NoteKey")
    }
}

/// The shared state that every node reads and writes.
///
/// Every operation is safe to repeat, also if the first attempt timed out and is executed
/// later. [`Error::Unavailable`] means that the outcome is unknown: repeat the operation. A
/// session is absent once its time to live has passed.
#[async_trait::async_trait]
pub trait Store: Send + Sync + 'static {
    /// Creates a session, owned by the record's token. A repetition with the same token
    /// succeeds and changes nothing. Another token gets [`Error::Fenced`].
    async fn create(&self, session: &SessionId, record: Record, ttl: Duration)
    -> Result<(), Error>;

    /// Returns the session's record, also if it is a tombstone.
    async fn read(&self, session: &SessionId) -> Result<Option<Record>, Error>;

    /// Returns the session's log: consecutive numbers, from the floor on.
    async fn read_log(&self, session: &SessionId) -> Result<Vec<(u64, Bytes)>, Error>;

    /// Makes `new` the owner if the session is as `expected` and the counter of `new` is
    /// above the record's. Otherwise [`Error::Fenced`] names the owner. A repetition succeeds.
    ///
    /// `at` is the session's primary from which the caller read that it may claim. Any other
    /// primary refuses the claim with [`Error::Unavailable`]: it may have lost a write that
    /// forbids the claim. `None` allows any primary, for a caller that never reads the
    /// [primaries](Self::primaries).
    async fn claim(
        &self,
        session: &SessionId,
        expected: Expected,
        new: Owner,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<Claimed, Error>;

    /// Appends a batch to the session's log.
    ///
    /// Entries below the floor are dropped, from the log and from the batch. Entries that
    /// the log already holds are dropped from the batch. A batch that begins after the number
    /// that the log expects is refused with [`Error::Hole`]. A log that is empty, or that ends
    /// below the floor, accepts only a batch that begins at the floor, and is replaced by it.
    async fn append(&self, batch: Batch) -> Result<Appended, Error>;

    /// Writes a session again after the store lost it by a failover or an eviction. `ring` is
    /// the owner's replay buffer: all entries that can still be replayed, under the record's
    /// token.
    ///
    /// If the session is missing, or a predecessor of the record's token owns it, record and
    /// log are replaced by these. If the record's own token owns it, the ring is appended, and
    /// the state is saved if it is newer. Any other owner gets [`Error::Fenced`]. A tombstone
    /// stays, [`Error::Ended`]. A record with [`RecordStatus::Ended`] restores its tombstone by
    /// the same rules and appends nothing.
    async fn reassert(&self, record: Record, ring: Batch) -> Result<Appended, Error>;

    /// Writes the session's state if its version is above the record's. Returns the version
    /// that the record has afterwards.
    async fn save(&self, session: &SessionId, token: Token, state: State) -> Result<u64, Error>;

    /// Adds bytes to the session's state if its record has the version before them. Returns the
    /// version that the record has afterwards. If that is below the extension's, nothing was
    /// written, and the whole state must be [saved](Self::save).
    async fn extend_state(
        &self,
        session: &SessionId,
        token: Token,
        extension: StateExtension,
    ) -> Result<u64, Error>;

    /// Releases the session. This is the last operation under a token. A repetition
    /// succeeds. `at` is as for [claims](Self::claim).
    async fn release(
        &self,
        session: &SessionId,
        token: Token,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<(), Error>;

    /// Ends the session: deletes its log and keeps a tombstone for `ttl`. Succeeds if the
    /// session has ended already.
    async fn end(&self, session: &SessionId, token: Token, ttl: Duration) -> Result<(), Error>;

    /// Writes the node's lease, and returns whether it was still there.
    /// [`Error::MarkedDead`] if the incarnation was marked dead; a mark is never overwritten.
    ///
    /// A renewal with the number of the stored one changes nothing and gets the same answer as
    /// the first: otherwise a retry would hide that the lease had lapsed. A renewal with a
    /// lower number is late and is refused with [`Error::Unavailable`].
    async fn renew(&self, lease: Lease, ttl: Duration) -> Result<Renewed, Error>;

    /// Ends the incarnation's lease for good. For `ttl` the incarnation is [`Presence::Dead`],
    /// marked by itself, so that a late renewal does not restore the lease. A repetition
    /// succeeds.
    async fn leave(&self, incarnation: Incarnation, ttl: Duration) -> Result<(), Error>;

    /// Returns the leases of all live nodes.
    async fn nodes(&self) -> Result<Vec<Lease>, Error>;

    /// Returns whether one incarnation is live, marked dead or gone.
    async fn presence(&self, incarnation: Incarnation) -> Result<Presence, Error>;

    /// Marks an incarnation dead for `ttl`, unless another live node has a link to it.
    /// `by` must be live itself, otherwise [`Error::MarkedDead`] or [`Error::LeaseGone`]. Links
    /// of the nodes in `also_dead`, which `by` knows to be dead as well, are ignored: the leases
    /// of nodes that died together list each other.
    ///
    /// `seen` is the number of the last renewal that `by` read. A lease with another number was
    /// renewed since, so the result is [`Marking::Renewed`], also if the command arrives late.
    /// `None` means that the node's process is known to have ended.
    async fn mark_dead(
        &self,
        incarnation: Incarnation,
        by: Incarnation,
        also_dead: &[Incarnation],
        seen: Option<u64>,
        ttl: Duration,
    ) -> Result<Marking, Error>;

    /// Adds revocations to those of the store: of each client the latest times count
    /// ([`RevocationList`]). Those that have ended at `now_ms` are dropped. If none is news, nothing
    /// changes. Returns the generation afterwards.
    async fn revoke(
        &self,
        revocations: &[Revocation],
        now_ms: u64,
    ) -> Result<RevocationGeneration, Error>;

    /// Returns the revocations, and their generation.
    async fn revocations(&self) -> Result<(RevocationGeneration, RevocationList), Error>;

    /// Returns the generation of the revocations, which each renewal returns as well.
    async fn revocation_generation(&self) -> Result<RevocationGeneration, Error>;

    /// Returns a page of the sessions of every status, for operators. A session that is there from the
    /// first page to the last is on one of them, unless a part of the store moves or is replaced meanwhile.
    /// `count` is about how many entries of the store are looked at; the page may be empty.
    async fn scan(&self, from: ScanCursor, count: usize) -> Result<Scanned, Error>;

    /// Returns the note under a key.
    async fn note(&self, key: &NoteKey) -> Result<Option<Bytes>, Error>;

    /// Writes a note, in place of one that is there. It is absent once `ttl` has passed.
    async fn put_note(&self, key: &NoteKey, note: Bytes, ttl: Duration) -> Result<(), Error>;

    /// Writes a note if there is none, and returns whether it is there: also if an attempt was executed whose
    /// answer was lost. So callers that compete need different notes.
    async fn add_note(&self, key: &NoteKey, note: Bytes, ttl: Duration) -> Result<bool, Error>;

    /// Removes a note and returns it. Of several callers one gets it, or none if that one's answer is lost.
    async fn take_note(&self, key: &NoteKey) -> Result<Option<Bytes>, Error>;

    /// Returns the current primaries of the store. A primary that replaced another may lack
    /// the last writes, so the owner of each of its sessions re-asserts it.
    ///
    /// After the first call, a primary that was not [acknowledged](Self::acknowledge) never
    /// reports a session as [missing](Self::read) or a node as [gone](Self::presence): the
    /// result is [`Error::Unavailable`].
    async fn primaries(&self) -> Result<Vec<Primary>, Error> {
        Ok(vec![Primary::of_everything(PrimaryId(0))])
    }

    /// Replaces the set of acknowledged primaries. From now on the caller takes into account
    /// that these primaries may have lost writes.
    fn acknowledge(&self, _: &[PrimaryId]) {}

    /// Whether the store is likely to answer, judged by the last attempts. Sends nothing. The
    /// value is for operators; a caller that needs the store sends its request.
    fn is_reachable(&self) -> bool {
        true
    }

    /// Removes a bounded number of expired sessions, and returns how many. Must be called
    /// periodically. A store that expires sessions by itself does nothing here.
    async fn sweep(&self) -> Result<usize, Error> {
        Ok(0)
    }
}
