//! The revocations that this node knows, and how it reads and writes those of the store.
//!
//! A node reads them before a renewal of its lease counts if the store has others than the node. So a node
//! that was cut off reads them before it acts again, and a starting node before it acts at all.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use ownership::RevocationTimes;
use store::{Error, Revocation, RevocationGeneration, RevocationList, Store};
use tokio::sync::watch;

use crate::clock::millis;
use crate::metrics;

/// The revocations that this node knows. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Revocations(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Grows with each change of the list, after it.
    version: AtomicU64,
    /// Has the version, for those who wait for the next one.
    changed: watch::Sender<u64>,
    list: RwLock<Arc<RevocationList>>,
    /// The generation of the store whose revocations this list has, and that has all of this list.
    read: Mutex<Option<RevocationGeneration>>,
}

impl Revocations {
    /// The present list.
    pub fn list(&self) -> Arc<RevocationList> {
        Arc::clone(&self.0.list.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes whenever the list has changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Adds revocations of another node or of an operator. Returns whether any was news.
    pub fn merge(&self, revocations: &[Revocation]) -> bool {
        let is_news = self.change(|list| list.merge_all(revocations));
        if is_news {
            // The store may lack them.
            self.set_read(None);
        }
        is_news
    }

    /// Whether the store may lack something of the list, or has not been read.
    pub(crate) fn differ(&self) -> bool {
        self.read_generation().is_none()
    }

    /// Reads the revocations of the store if it has others than this node, and writes those that it lacks.
    /// Fails only if they cannot be read.
    pub(crate) async fn catch_up(
        &self,
        store: &dyn Store,
        generation: RevocationGeneration,
    ) -> Result<(), Error> {
        if self.read_generation() == Some(generation) {
            return Ok(());
        }
        let (generation, theirs) = store.revocations().await?;
        self.change(|list| {
            let merged = list.merge_all(&theirs.all());
            list.remove_ended(now_ms()) || merged
        });
        let version = self.0.version.load(Ordering::Acquire);
        let lacking = self.list().news_for(&theirs);
        if lacking.is_empty() {
            self.set_read(Some(generation));
            if self.0.version.load(Ordering::Acquire) != version {
                // Something was added meanwhile.
                self.set_read(None);
            }
            return Ok(());
        }
        match store.revoke(&lacking, now_ms()).await {
            // The next look reads what the store has by then, from any node.
            Ok(_) => tracing::debug!(count = lacking.len(), "wrote revocations to the store again"),
            Err(error) => {
                tracing::debug!(%error, "writing revocations to the store failed; trying again");
            }
        }
        self.set_read(None);
        Ok(())
    }

    /// Removes what has ended. The store is not told: it drops the same with its next write.
    pub(crate) fn remove_ended(&self) {
        self.change(|list| list.remove_ended(now_ms()));
    }

    fn change(&self, change: impl FnOnce(&mut RevocationList) -> bool) -> bool {
        let mut list = self.0.list.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = RevocationList::clone(&list);
        if !change(&mut changed) {
            return false;
        }
        metrics::REVOCATIONS.set(i64::try_from(changed.count()).unwrap_or(i64::MAX));
        *list = Arc::new(changed);
        drop(list);
        let version = self.0.version.fetch_add(1, Ordering::Release) + 1;
        self.0.changed.send_replace(version);
        true
    }

    fn read_generation(&self) -> Option<RevocationGeneration> {
        *self.0.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_read(&self, generation: Option<RevocationGeneration>) {
        *self.0.read.lock().unwrap_or_else(PoisonError::into_inner) = generation;
    }
}

/// The revocations as one thread reads them. While none is added, a look compares one number that no
/// thread changes.
#[derive(Debug)]
pub struct RevocationsOfThread {
    shared: Revocations,
    version: Cell<u64>,
    list: RefCell<Arc<RevocationList>>,
}

impl Clone for RevocationsOfThread {
    /// For another thread.
    fn clone(&self) -> Self {
        Self::new(&self.shared)
    }
}

impl RevocationsOfThread {
    /// For one thread.
    pub fn new(shared: &Revocations) -> Self {
        let new = Self { shared: shared.clone(), version: Cell::new(0), list: RefCell::default() };
        new.refresh();
        new
    }

    /// The revocations that all threads share.
    pub fn shared(&self) -> &Revocations {
        &self.shared
    }

    /// When this client of the tenant was revoked, if it was.
    pub fn times(&self, tenant: &str, principal: &str) -> Option<RevocationTimes> {
        self.refresh();
        let list = self.list.borrow();
        if list.is_empty() { None } else { list.times(tenant, principal) }
    }

    fn refresh(&self) {
        // Read before the list: the list is then never older than its version.
        let version = self.shared.0.version.load(Ordering::Acquire);
        if self.version.replace(version) != version {
            // A copy: requests of other threads read other memory.
            let list = RevocationList::clone(&self.shared.list());
            *self.list.borrow_mut() = Arc::new(list);
        }
    }
}

/// The time by which revocations and tokens are compared.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis)
}
