//! Which sessions live on this node, and how many may.
//!
//! An entry and a slot are given back by being dropped, so a session that ends in
//! whatever way leaves neither behind.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::Load;
use conversation::Refusal;
use protocol::SessionId;
use tenants::{Principal, Tenant};
use tokio::sync::{Notify, watch};

use crate::metrics;
use crate::session::SessionHandle;

/// So many that threads seldom wait for each other.
const SHARDS: usize = 16;

/// The node's sessions. Bounded by its slots.
pub(crate) struct Registry {
    hasher: RandomState,
    shards: [Mutex<HashSet<ById>>; SHARDS],
    counts: Mutex<Counts>,
    /// The number of sessions, as other nodes see it.
    load: Load,
    intake: watch::Sender<Intake>,
    empty: Notify,
    /// Some session is not known any more.
    gone: Notify,
}

/// Whether this node takes sessions. It only goes on from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Intake {
    /// It does.
    Open,
    /// It hands its sessions over to other nodes, and new ones as well.
    Draining,
    /// It refuses new sessions.
    Closed,
}

/// The result of a look for a session.
pub(crate) enum Lookup {
    /// The way in, though the session may be about to go.
    Here(Arc<SessionHandle>),
    /// The session of another principal. The caller learns nothing of it (SES-04).
    Foreign,
    /// No such session on this node.
    Absent,
}

/// A session that is known, by its id.
struct ById(Arc<SessionHandle>);

impl Borrow<SessionId> for ById {
    fn borrow(&self) -> &SessionId {
        &self.0.session
    }
}

impl Hash for ById {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.session.hash(hasher);
    }
}

impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.0.session == other.0.session
    }
}

impl Eq for ById {}

#[derive(Default)]
struct Counts {
    sessions: usize,
    by_tenant: HashMap<Arc<str>, usize>,
}

impl Registry {
    /// Notes the number of sessions in `load`.
    pub(crate) fn new(load: Load) -> Self {
        Self {
            load,
            intake: watch::Sender::new(Intake::Open),
            hasher: RandomState::new(),
            shards: Default::default(),
            counts: Mutex::default(),
            empty: Notify::new(),
            gone: Notify::new(),
        }
    }

    /// Room for one more session, if the node and the tenant have it.
    pub(crate) fn take_slot(
        self: &Arc<Self>,
        tenant: &Tenant,
        sessions_max: usize,
    ) -> Result<Slot, Refusal> {
        self.take_slot_within(&tenant.name, sessions_max, tenant.sessions_max)
    }

    /// Room for a session that is there already, if the node has it. It was counted against
    /// its tenant when it was opened, so the tenant's bound is not asked again.
    pub(crate) fn take_slot_for_restored(
        self: &Arc<Self>,
        tenant: &Arc<str>,
        sessions_max: usize,
    ) -> Result<Slot, Refusal> {
        self.take_slot_within(tenant, sessions_max, usize::MAX)
    }

    fn take_slot_within(
        self: &Arc<Self>,
        tenant: &Arc<str>,
        sessions_max: usize,
        tenants_max: usize,
    ) -> Result<Slot, Refusal> {
        let mut counts = lock(&self.counts);
        if *self.intake.borrow() == Intake::Closed {
            return Err(Refusal::Stopping);
        }
        let held = counts.by_tenant.get(tenant).copied().unwrap_or(0);
        if counts.sessions >= sessions_max || held >= tenants_max {
            metrics::SESSIONS_REFUSED.inc();
            return Err(Refusal::TooManySessions);
        }
        counts.sessions += 1;
        self.load.set(counts.sessions as u64);
        *counts.by_tenant.entry(Arc::clone(tenant)).or_default() += 1;
        drop(counts);
        metrics::SESSIONS.inc();
        Ok(Slot { registry: Arc::clone(self), tenant: Arc::clone(tenant), is_passed_on: false })
    }

    /// Makes the session of a session handle known, in its slot; not if it is already.
    pub(crate) fn register(
        &self,
        handle: &Arc<SessionHandle>,
        mut slot: Slot,
    ) -> Option<Registration> {
        if !self.shard(&handle.session).insert(ById(Arc::clone(handle))) {
            return None;
        }
        slot.is_passed_on = true;
        Some(Registration { registry: Arc::clone(&slot.registry), handle: Arc::clone(handle) })
    }

    /// Is the session here, of whatever principal?
    pub(crate) fn knows(&self, session: &SessionId) -> bool {
        self.shard(session).contains(session)
    }

    /// The session, where the caller may see it.
    pub(crate) fn find(&self, tenant: &str, principal: &Principal, session: &SessionId) -> Lookup {
        let shard = self.shard(session);
        match shard.get(session) {
            Some(ById(handle)) if handle.admits(tenant, principal) => {
                Lookup::Here(Arc::clone(handle))
            }
            Some(_) => Lookup::Foreign,
            None => Lookup::Absent,
        }
    }

    /// How many sessions live here, those included that are about to go.
    pub(crate) fn sessions(&self) -> usize {
        lock(&self.counts).sessions
    }

    /// Does this node hand its sessions over to others, or end them?
    pub(crate) fn is_departing(&self) -> bool {
        *self.intake.borrow() != Intake::Open
    }

    /// Returns when this node hands its sessions over to others, or ends them.
    pub(crate) fn departed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut intake = self.intake.subscribe();
        async move {
            // The registry outlives its connections; should it not, they end anyway.
            let _ = intake.wait_for(|intake| *intake != Intake::Open).await;
        }
    }

    /// From now on sessions are handed over.
    pub(crate) fn drain(&self) {
        self.advance_intake(Intake::Draining);
    }

    /// From now on no slot is given.
    pub(crate) fn close(&self) {
        // Under this lock, so that no slot is given after this returns.
        let _counts = lock(&self.counts);
        self.advance_intake(Intake::Closed);
    }

    fn advance_intake(&self, to: Intake) {
        self.intake.send_if_modified(|intake| {
            let is_news = *intake < to;
            *intake = to.max(*intake);
            is_news
        });
    }

    /// Does something with every session that is known now.
    pub(crate) fn for_each(&self, act: impl Fn(&SessionHandle)) {
        for shard in &self.shards {
            lock(shard).iter().for_each(|ById(handle)| act(handle));
        }
    }

    /// Returns when no session lives here. To be made before `sessions` is asked.
    pub(crate) fn empty(&self) -> tokio::sync::futures::Notified<'_> {
        self.empty.notified()
    }

    /// Returns when some session is not known any more. To be enabled before `find` is asked.
    pub(crate) fn gone(&self) -> tokio::sync::futures::Notified<'_> {
        self.gone.notified()
    }

    /// A slot is given back.
    fn vacate(&self, tenant: &str) {
        let mut counts = lock(&self.counts);
        counts.sessions -= 1;
        self.load.set(counts.sessions as u64);
        if let Some(held) = counts.by_tenant.get_mut(tenant) {
            *held -= 1;
            if *held == 0 {
                counts.by_tenant.remove(tenant);
            }
        }
        let empty = counts.sessions == 0;
        drop(counts);
        metrics::SESSIONS.dec();
        if empty {
            self.empty.notify_waiters();
        }
    }

    fn shard(&self, session: &SessionId) -> MutexGuard<'_, HashSet<ById>> {
        lock(&self.shards[self.hasher.hash_one(session) as usize % SHARDS])
    }
}

/// A session in the registry, and its slot. Both are given back when dropped, in that order.
pub(crate) struct Registration {
    registry: Arc<Registry>,
    handle: Arc<SessionHandle>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut shard = self.registry.shard(&self.handle.session);
        let handle = shard.take(&self.handle.session);
        // A burst of sessions leaves no empty table behind.
        if shard.len() * 4 < shard.capacity() && shard.capacity() > 64 {
            shard.shrink_to_fit();
        }
        drop(shard);
        drop(handle);
        self.registry.gone.notify_waiters();
        self.registry.vacate(&self.handle.tenant);
    }
}

/// One of the sessions that a tenant may have at this node. Given back when dropped.
pub(crate) struct Slot {
    registry: Arc<Registry>,
    tenant: Arc<str>,
    /// The registration gives it back.
    is_passed_on: bool,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_passed_on {
            self.registry.vacate(&self.tenant);
        }
    }
}

/// Nothing panics under these locks, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
