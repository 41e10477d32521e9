//! A store that fails over to a primary that lost writes.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use protocol::SessionId;
use store::{
    Appended, Batch, Claimed, Error, Expected, Incarnation, Marking, Memory, Owner, Primary,
    PrimaryId, Record, State, StateExtension, Store, StoreLayer, Token,
};

/// The store of a whole cluster.
pub(crate) struct LossyStore {
    primary: RwLock<Arc<Memory>>,
    life: AtomicU64,
    /// Rejects further writes of sessions, like a Redis that is full.
    pub(crate) is_full: AtomicBool,
    /// Fails re-assertions.
    pub(crate) is_away: AtomicBool,
    /// Fails to end sessions.
    pub(crate) refuses_end: AtomicBool,
    /// Fails to mark nodes dead.
    pub(crate) refuses_marks: AtomicBool,
    /// The number of re-assertions.
    pub(crate) reassertions: AtomicUsize,
}

impl Default for LossyStore {
    fn default() -> Self {
        Self {
            primary: RwLock::default(),
            life: AtomicU64::new(1),
            is_full: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            refuses_end: AtomicBool::new(false),
            refuses_marks: AtomicBool::new(false),
            reassertions: AtomicUsize::new(0),
        }
    }
}

impl LossyStore {
    /// Fails over to a primary that holds only this record.
    pub(crate) async fn fail_over(&self, session: &SessionId, record: Record) {
        let next = Arc::new(Memory::default());
        next.create(session, record, Duration::from_secs(600)).await.unwrap();
        *self.primary.write().unwrap() = next;
        self.life.fetch_add(1, Ordering::SeqCst);
    }

    fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.primary.read().unwrap())
    }
}

fn unavailable() -> Error {
    Error::Unavailable(io::Error::from(io::ErrorKind::TimedOut))
}

#[async_trait::async_trait]
impl StoreLayer for LossyStore {
    fn inner(&self) -> Result<Arc<dyn Store>, Error> {
        Ok(self.memory())
    }
    async fn claim(
        &self,
        s: &SessionId,
        e: Expected,
        n: Owner,
        _: Option<PrimaryId>,
        t: Duration,
    ) -> Result<Claimed, Error> {
        self.memory().claim(s, e, n, None, t).await
    }
    async fn append(&self, batch: Batch) -> Result<Appended, Error> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(unavailable());
        }
        self.memory().append(batch).await
    }
    async fn reassert(&self, r: Record, b: Batch) -> Result<Appended, Error> {
        let away = self.is_away.load(Ordering::SeqCst);
        let result = if away { Err(unavailable()) } else { self.memory().reassert(r, b).await };
        self.reassertions.fetch_add(1, Ordering::SeqCst);
        result
    }
    async fn save(&self, s: &SessionId, t: Token, st: State) -> Result<u64, Error> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(unavailable());
        }
        self.memory().save(s, t, st).await
    }
    async fn extend_state(
        &self,
        s: &SessionId,
        t: Token,
        extension: StateExtension,
    ) -> Result<u64, Error> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(unavailable());
        }
        self.memory().extend_state(s, t, extension).await
    }
    async fn release(
        &self,
        s: &SessionId,
        t: Token,
        _: Option<PrimaryId>,
        d: Duration,
    ) -> Result<(), Error> {
        self.memory().release(s, t, None, d).await
    }
    async fn end(&self, s: &SessionId, t: Token, d: Duration) -> Result<(), Error> {
        if self.refuses_end.load(Ordering::SeqCst) {
            return Err(unavailable());
        }
        self.memory().end(s, t, d).await
    }
    async fn mark_dead(
        &self,
        i: Incarnation,
        by: Incarnation,
        also_dead: &[Incarnation],
        seen: Option<u64>,
        t: Duration,
    ) -> Result<Marking, Error> {
        if self.refuses_marks.load(Ordering::SeqCst) {
            return Err(unavailable());
        }
        self.memory().mark_dead(i, by, also_dead, seen, t).await
    }
    async fn primaries(&self) -> Result<Vec<Primary>, Error> {
        let life = self.life.load(Ordering::SeqCst);
        Ok(vec![Primary::of_everything(PrimaryId(life.into()))])
    }
}
