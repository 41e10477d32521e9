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
use telemetry::SpanRef;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use crate::registry::Registration;

/// The wait between two attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the write of an abandoned session's end is retried.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// The future of a record that is being created.
pub(crate) type Creation = Pin<Box<dyn Future<Output = Result<(), Error>>>>;

/// A record that is created after the handshake, so that a failed handshake leaves no record in the
/// store.
pub(crate) struct PendingRecord {
    pub(crate) owner: Owner,
    pub(crate) tenant: Arc<str>,
    pub(crate) principal: Digest,
    /// The generations in which this node acquires the session.
    pub(crate) acquired: Acquired,
    /// The random part of the token for a further claim.
    pub(crate) random: u64,
    /// The first event of the session.
    pub(crate) first: Option<Event>,
    /// The span of the first request, if it is traced.
    pub(crate) within: Option<SpanRef>,
    /// The creation in progress.
    pub(crate) creation: Option<Creation>,
    /// Signals that the store holds the record. The opener of a duplex session waits for it before
    /// it returns the session.
    pub(crate) recorded: Option<oneshot::Sender<()>>,
}

impl PendingRecord {
    /// Builds the record; `initialize` is the params of that request.
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

/// Creates the record. Retries for `patience` while the store is unavailable.
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

/// Writes the end of the session, and then drops its registration. A record whose end cannot be
/// written expires.
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
        Ok(Err(error)) => tracing::warn!(?session, %error, "writing the end of a session failed"),
        Err(_) => tracing::warn!(?session, "writing the end of a session timed out"),
    }
    drop(registration);
}
