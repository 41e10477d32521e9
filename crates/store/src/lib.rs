//! The state that all nodes must agree on: session records, owners, logs, leases.
//!
//! A [`Store`] is the only shared part of a cluster. It decides nothing: it compares
//! tokens, keeps logs without duplicate, hole or disorder, and refuses a writer that has
//! lost its right to write. It never looks into an entry, a state or a principal.
//!
//! The promises of every implementation are written once, as the `contract` whose tests run
//! on each of them. [`Memory`] is the store of a single node, [`redis::Redis`] of a cluster.

#[cfg(any(test, feature = "contract"))]
pub mod contract;
#[cfg(any(test, feature = "layer"))]
mod layer;
mod memory;
#[cfg(feature = "redis")]
mod metrics;
#[cfg(feature = "redis")]
pub mod redis;

use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;

#[cfg(any(test, feature = "layer"))]
pub use layer::StoreLayer;
pub use memory::Memory;
pub use ownership::{
    Appended, Batch, Claimed, Digest, Error, Expected, FORMER_MAX, Incarnation, Lease, Marking,
    Owner, Presence, Primary, PrimaryId, Record, RecordStatus, Renewed, State, Token,
};

/// What every node can read and write.
///
/// Sending anything again is safe, also when the first sending was given up for lost
/// and arrives later. An answer that did not come ([`Error::Unavailable`]) says nothing:
/// ask again. A session past its time to live is absent from then on.
#[async_trait::async_trait]
pub trait Store: Send + Sync + 'static {
    /// Makes a session, owned by the record's token. Repeated with the same token: yes
    /// again, and nothing changes. With another: [`Error::Fenced`].
    async fn create(&self, session: &SessionId, record: Record, ttl: Duration)
    -> Result<(), Error>;

    /// The session's record, tombstones included.
    async fn read(&self, session: &SessionId) -> Result<Option<Record>, Error>;

    /// The session's log: numbers without a hole, from the floor on.
    async fn read_log(&self, session: &SessionId) -> Result<Vec<(u64, Bytes)>, Error>;

    /// Makes `new` the owner if the session is as `expected` and `new`'s counter is
    /// above the record's; else [`Error::Fenced`] says who owns it. Repeated: yes again.
    ///
    /// `at` is the primary of the session by which the caller judged that it may claim:
    /// any other primary may have forgotten what speaks against it, so there the claim is
    /// refused, [`Error::Unavailable`]. `None`: the caller never asks for
    /// [primaries](Self::primaries), and any will do.
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
    /// Entries below the floor are dropped, from the log and from the batch. Of the rest,
    /// those that the log already holds are dropped. A batch that begins after the number
    /// that the log expects is refused, [`Error::Hole`]. A log that is empty, or that ends
    /// below the floor, takes only what begins at the floor, and is replaced by it.
    async fn append(&self, batch: Batch) -> Result<Appended, Error>;

    /// Writes a session anew that a failover or an eviction made the store forget: `ring`
    /// is everything its owner can still replay, under the record's token.
    ///
    /// Where the session is missing, or held by a token from before the record's, record
    /// and log are replaced by these. Where it is held by the record's own token, the
    /// ring is appended and the state is saved if it is newer. Any other owner:
    /// [`Error::Fenced`]. A tombstone stays: [`Error::Ended`]. A record that itself is
    /// [`RecordStatus::Ended`] puts its tombstone back by the same rules, and logs nothing.
    async fn reassert(&self, record: Record, ring: Batch) -> Result<Appended, Error>;

    /// Writes the session's state if its version is above the one held. Answers with
    /// the version that the record holds now.
    async fn save(&self, session: &SessionId, token: Token, state: State) -> Result<u64, Error>;

    /// Gives the session up. The last thing that is ever done under a token. Repeated:
    /// yes again. `at`: as for [claims](Self::claim).
    async fn release(
        &self,
        session: &SessionId,
        token: Token,
        at: Option<PrimaryId>,
        ttl: Duration,
    ) -> Result<(), Error>;

    /// Ends the session: its log is gone, and a tombstone stands for `ttl`. A session
    /// that has ended already: yes again.
    async fn end(&self, session: &SessionId, token: Token, ttl: Duration) -> Result<(), Error>;

    /// Writes the node's lease, and says whether it was still there.
    /// [`Error::MarkedDead`] where the incarnation was marked; a mark is never overwritten.
    ///
    /// A renewal with the number of the one held changes nothing and gets the answer that
    /// the first one got: else a lease that was gone would be hidden by the retry. One with
    /// a lower number came late and is refused, [`Error::Unavailable`].
    async fn renew(&self, lease: Lease, ttl: Duration) -> Result<Renewed, Error>;

    /// Gives the incarnation's lease up for good: for `ttl` it is [`Presence::Dead`] by its
    /// own hand, and no renewal that comes late brings the lease back. Repeated: yes again.
    async fn leave(&self, incarnation: Incarnation, ttl: Duration) -> Result<(), Error>;

    /// The leases of all live nodes.
    async fn nodes(&self) -> Result<Vec<Lease>, Error>;

    /// What is known of one incarnation.
    async fn presence(&self, incarnation: Incarnation) -> Result<Presence, Error>;

    /// Marks an incarnation dead for `ttl`, unless another live node has a link to it.
    /// `by` must be live itself: [`Error::MarkedDead`] or [`Error::LeaseGone`] if not. Links of
    /// those that `by` knows to be dead as well (`also_dead`) count for nothing: nodes that die
    /// together list each other.
    ///
    /// `seen`: the number of the renewal by which `by` found it dead. A lease of another number
    /// is a sign of life, also to a command that arrives late: [`Marking::Renewed`]. `None`:
    /// its process is known to have ended.
    async fn mark_dead(
        &self,
        incarnation: Incarnation,
        by: Incarnation,
        also_dead: &[Incarnation],
        seen: Option<u64>,
        ttl: Duration,
    ) -> Result<Marking, Error>;

    /// Who keeps the store's data right now. Where the primary of a session is another
    /// than before, it may have forgotten what was written last: its owner re-asserts it.
    ///
    /// From the first time this is asked on, the store [reads](Self::read) no session as
    /// missing, and finds no [node gone](Self::presence), on a primary that was not
    /// [acknowledged](Self::acknowledge): those answers are [`Error::Unavailable`].
    async fn primaries(&self) -> Result<Vec<Primary>, Error> {
        Ok(vec![Primary::of_everything(PrimaryId(0))])
    }

    /// The caller has taken note of these primaries, and of no others: whatever it judges
    /// from now on takes into account that they may have forgotten something.
    fn acknowledge(&self, _: &[PrimaryId]) {}

    /// Is the store likely to answer? Costs nothing and sends nothing: the result is that of the
    /// last attempts. It is meant for operators; a caller that needs the store sends its request.
    fn is_reachable(&self) -> bool {
        true
    }

    /// Forgets a bounded number of things whose time has come, and answers how many.
    /// Call it now and then; a store that forgets by itself has nothing to do.
    async fn sweep(&self) -> Result<usize, Error> {
        Ok(0)
    }
}
