//! What all nodes must agree on: session records, owners, logs, leases.
//!
//! A [`Store`] is the only shared part of a cluster. It decides nothing: it compares
//! tokens, keeps logs without duplicate, hole or disorder, and says no to whoever lost
//! the right to write. It never looks into an entry, a state or a principal.
//!
//! What every implementation promises is written once, as the `contract` that runs on
//! each of them. [`Memory`] is the one for a single node, [`redis::Redis`] for a cluster.

mod batch;
#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod error;
mod lease;
mod memory;
mod metrics;
mod primary;
mod record;
pub mod redis;
mod token;

use std::time::Duration;

use bytes::Bytes;
use protocol::SessionId;

pub use batch::{Appended, Batch, Claimed, Expected};
pub use error::Error;
pub use lease::{Lease, Marking, Presence, Renewed};
pub use memory::Memory;
pub use primary::{Primary, PrimaryId};
pub use record::{Digest, FORMER_MAX, Record, Standing, State};
pub use token::{Incarnation, Owner, Token};

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
    async fn claim(
        &self,
        session: &SessionId,
        expected: Expected,
        new: Owner,
        ttl: Duration,
    ) -> Result<Claimed, Error>;

    /// Appends a batch to the session's log.
    ///
    /// Entries below the floor are dropped, from the log and from the batch. Of the rest,
    /// those that the log already holds are dropped. A batch that begins after the number
    /// that the log expects is refused, [`Error::Hole`]. A log that is empty, or that ends
    /// below the floor, takes only what begins at the floor, and is replaced by it.
    async fn append(&self, batch: Batch) -> Result<Appended, Error>;

    /// Appends several batches, each for itself; the answers are in the same order.
    async fn append_many(&self, batches: Vec<Batch>) -> Vec<Result<Appended, Error>> {
        let mut answers = Vec::with_capacity(batches.len());
        for batch in batches {
            answers.push(self.append(batch).await);
        }
        answers
    }

    /// Writes a session anew that a failover or an eviction made the store forget: `ring`
    /// is everything its owner can still replay, under the record's token.
    ///
    /// Where the session is missing, or held by a token from before the record's, record
    /// and log are replaced by these. Where it is held by the record's own token, the
    /// ring is appended and the state is saved if it is newer. Any other owner:
    /// [`Error::Fenced`]. A tombstone stays: [`Error::Ended`]. A record that itself is
    /// [`Standing::Ended`] puts its tombstone back by the same rules, and logs nothing.
    async fn reassert(&self, record: Record, ring: Batch) -> Result<Appended, Error>;

    /// Writes the session's state if its version is above the one held. Answers with
    /// the version that the record holds now.
    async fn save(&self, session: &SessionId, token: Token, state: State) -> Result<u64, Error>;

    /// Gives the session up. The last thing that is ever done under a token. Repeated:
    /// yes again.
    async fn release(&self, session: &SessionId, token: Token, ttl: Duration) -> Result<(), Error>;

    /// Ends the session: its log is gone, and a tombstone stands for `ttl`. A session
    /// that has ended already: yes again.
    async fn end(&self, session: &SessionId, token: Token, ttl: Duration) -> Result<(), Error>;

    /// At most `max` of the tenant's sessions, in no particular order; no tombstones.
    async fn sessions_of(&self, tenant: &str, max: usize) -> Result<Vec<SessionId>, Error>;

    /// How many sessions the tenant has. Some that expired a moment ago may be among them.
    async fn count_of(&self, tenant: &str) -> Result<usize, Error>;

    /// Writes the node's lease, and says whether it was still there.
    /// [`Error::MarkedDead`] where the incarnation was marked; a mark is never overwritten.
    async fn renew(&self, lease: Lease, ttl: Duration) -> Result<Renewed, Error>;

    /// The leases of all live nodes.
    async fn nodes(&self) -> Result<Vec<Lease>, Error>;

    /// What is known of one incarnation.
    async fn presence(&self, incarnation: Incarnation) -> Result<Presence, Error>;

    /// How long a node's lease stands if it is not renewed: by this others see whether it
    /// still is. `None` where it holds none. A store that cannot tell is unavailable.
    async fn lease_left(&self, _: Incarnation) -> Result<Option<Duration>, Error> {
        Err(Error::Unavailable(std::io::ErrorKind::Unsupported.into()))
    }

    /// Marks an incarnation dead for `ttl`, unless another live node has a link to it.
    /// `by` must be live itself: [`Error::MarkedDead`] or [`Error::LeaseGone`] if not.
    async fn mark_dead(
        &self,
        incarnation: Incarnation,
        by: Incarnation,
        ttl: Duration,
    ) -> Result<Marking, Error>;

    /// Who keeps the store's data right now. Where the primary of a session is another
    /// than before, it may have forgotten what was written last: its owner re-asserts it.
    ///
    /// From the first time this is asked on, the store claims and releases nothing, and
    /// finds no session missing that is [read](Self::read), on a primary that this has not
    /// told of yet: those answers are [`Error::Unavailable`] until it is asked again.
    async fn primaries(&self) -> Result<Vec<Primary>, Error> {
        Ok(vec![Primary::of_everything(PrimaryId(0))])
    }

    /// Would it probably answer? Costs nothing and asks nobody: it is what the last attempts
    /// showed. To be told to operators; whoever wants something from the store tries.
    fn is_reachable(&self) -> bool {
        true
    }

    /// Forgets a bounded number of things whose time has come, and answers how many.
    /// Call it now and then; a store that forgets by itself has nothing to do.
    async fn sweep(&self) -> Result<usize, Error> {
        Ok(0)
    }
}
