//! Creates a session's record in the store, and writes the end of a session that was abandoned.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use conversation::Event;
use ownership::machine::Acquired;
use protocol::{Revision, SessionId};
use store::{Digest, Error, Owner, Record, RecordStatus, State, Store, Token};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use crate::registry::Registration;

/// The wait between two attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the end of an abandoned session is tried to be written.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The future of a record that is being created.
pub(crate) type Creation = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// A record that waits for the handshake: one that fails leaves nothing in the store.
pub(crate) struct PendingRecord {
    pub(crate) owner: Owner,
    pub(crate) tenant: Arc<str>,
    pub(crate) principal: Digest,
    /// The generations in which it becomes this node's.
    pub(crate) acquired: Acquired,
    /// For the token that a further claim may need.
    pub(crate) random: u64,
    /// The event that the session begins with.
    pub(crate) first: Option<Event>,
    /// It is being recorded.
    pub(crate) creation: Option<Creation>,
    /// Signals that the store holds the record. The opener of a duplex session waits for this
    /// before it returns the session.
    pub(crate) recorded: Option<oneshot::Sender<()>>,
}

impl PendingRecord {
    /// `initialize` is its params.
    pub(crate) fn record(&self, revision: Revision, initialize: Arc<[u8]>) -> Record {
        Record {
            owner: self.owner,
            former: Vec::new(),
            tenant: Arc::clone(&self.tenant),
            principal: self.principal,
            revision: Cow::Borrowed(revision.as_str()),
            initialize,
            state: State::default(),
            status: RecordStatus::Owned,
        }
    }
}

/// Creates the record. Where the store is unavailable this is tried again, until `patience` is over.
pub(crate) async fn create_in_store(
    store: Arc<dyn Store>,
    session: SessionId,
    record: Record,
    ttl: Duration,
    patience: Duration,
) -> Result<(), Error> {
    let until = Instant::now() + patience;
    loop {
        match store.create(&session, record.clone(), ttl).await {
            Err(Error::Unavailable(_)) if Instant::now() + AGAIN < until => sleep(AGAIN).await,
            outcome => return outcome,
        }
    }
}

/// Writes that the session is over, and then drops its registration. A record whose end cannot be
/// written expires by itself.
pub(crate) async fn end_in_store(
    store: Arc<dyn Store>,
    session: SessionId,
    token: Token,
    tombstone: Duration,
    registration: Registration,
) {
    let until = Instant::now() + END_PATIENCE;
    let written = timeout_at(until, async {
        loop {
            match store.end(&session, token, tombstone).await {
                Err(Error::Unavailable(_)) => sleep(AGAIN).await,
                outcome => return outcome,
            }
        }
    });
    match written.await {
        Ok(Ok(()) | Err(Error::Missing | Error::Ended)) => {}
        Ok(Err(error)) => tracing::warn!(?session, %error, "the session's end was not written"),
        Err(_) => tracing::warn!(?session, "the session's end was not written in time"),
    }
    drop(registration);
}
