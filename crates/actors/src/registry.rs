//! Which sessions live on this node, and how many may.
//!
//! An entry and a seat are given back by being dropped, so a session that ends in
//! whatever way leaves neither behind.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conversation::Refusal;
use protocol::SessionId;
use tenants::{Principal, Tenant};
use tokio::sync::Notify;

use crate::metrics;
use crate::session_handle::SessionHandle;

/// So many that threads seldom wait for each other.
const SHARDS: usize = 16;

/// The node's sessions. Bounded by its seats.
pub(crate) struct Registry {
    hasher: RandomState,
    shards: [Mutex<HashSet<Known>>; SHARDS],
    census: Mutex<Census>,
    empty: Notify,
    /// Some session is not known any more.
    gone: Notify,
}

/// What a caller finds.
pub(crate) enum Found {
    /// The way in, though the session may be about to go.
    Here(Arc<SessionHandle>),
    /// Somebody else's session. Whose it is not learns nothing of it (SES-04).
    Foreign,
    /// No such session on this node.
    Absent,
}

/// A session that is known, by its id.
struct Known(Arc<SessionHandle>);

impl Borrow<SessionId> for Known {
    fn borrow(&self) -> &SessionId {
        &self.0.session
    }
}

impl Hash for Known {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.0.session.hash(hasher);
    }
}

impl PartialEq for Known {
    fn eq(&self, other: &Self) -> bool {
        self.0.session == other.0.session
    }
}

impl Eq for Known {}

#[derive(Default)]
struct Census {
    stopping: bool,
    sessions: usize,
    by_tenant: HashMap<Arc<str>, usize>,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: Default::default(),
            census: Mutex::default(),
            empty: Notify::new(),
            gone: Notify::new(),
        }
    }

    /// Room for one more session, if the node and the tenant have it.
    pub(crate) fn seat(
        self: &Arc<Self>,
        tenant: &Tenant,
        sessions_max: usize,
    ) -> Result<Seat, Refusal> {
        self.seat_within(&tenant.name, sessions_max, tenant.sessions_max)
    }

    /// Room for a session that is there already, if the node has it. It was counted against
    /// its tenant when it was opened, so the tenant's bound is not asked again.
    pub(crate) fn seat_again(
        self: &Arc<Self>,
        tenant: &Arc<str>,
        sessions_max: usize,
    ) -> Result<Seat, Refusal> {
        self.seat_within(tenant, sessions_max, usize::MAX)
    }

    fn seat_within(
        self: &Arc<Self>,
        tenant: &Arc<str>,
        sessions_max: usize,
        tenants_max: usize,
    ) -> Result<Seat, Refusal> {
        let mut census = lock(&self.census);
        if census.stopping {
            return Err(Refusal::Stopping);
        }
        let held = census.by_tenant.get(tenant).copied().unwrap_or(0);
        if census.sessions >= sessions_max || held >= tenants_max {
            metrics::SESSIONS_REFUSED.inc();
            return Err(Refusal::TooManySessions);
        }
        census.sessions += 1;
        *census.by_tenant.entry(Arc::clone(tenant)).or_default() += 1;
        drop(census);
        metrics::SESSIONS.inc();
        Ok(Seat { registry: Arc::clone(self), tenant: Arc::clone(tenant), is_passed_on: false })
    }

    /// Makes the session of a session handle known, in its seat; not if it is already.
    pub(crate) fn enroll(&self, handle: &Arc<SessionHandle>, mut seat: Seat) -> Option<Enrolled> {
        if !self.shard(&handle.session).insert(Known(Arc::clone(handle))) {
            return None;
        }
        seat.is_passed_on = true;
        Some(Enrolled { registry: Arc::clone(&seat.registry), handle: Arc::clone(handle) })
    }

    /// Is the session here, whosever it is?
    pub(crate) fn knows(&self, session: &SessionId) -> bool {
        self.shard(session).contains(session)
    }

    /// The session, where the caller may see it.
    pub(crate) fn find(&self, tenant: &str, principal: &Principal, session: &SessionId) -> Found {
        let shard = self.shard(session);
        match shard.get(session) {
            Some(Known(handle)) if handle.admits(tenant, principal) => {
                Found::Here(Arc::clone(handle))
            }
            Some(_) => Found::Foreign,
            None => Found::Absent,
        }
    }

    /// How many sessions live here, those included that are about to go.
    pub(crate) fn sessions(&self) -> usize {
        lock(&self.census).sessions
    }

    /// Are seats given no more?
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.census).stopping
    }

    /// From now on no seat is given.
    pub(crate) fn close(&self) {
        lock(&self.census).stopping = true;
    }

    /// Does something with every session that is known now.
    pub(crate) fn for_each(&self, act: impl Fn(&SessionHandle)) {
        for shard in &self.shards {
            lock(shard).iter().for_each(|Known(handle)| act(handle));
        }
    }

    /// Returns when no session lives here. To be enrolled before `sessions` is asked.
    pub(crate) fn empty(&self) -> tokio::sync::futures::Notified<'_> {
        self.empty.notified()
    }

    /// Returns when some session is not known any more. To be enabled before `find` is asked.
    pub(crate) fn gone(&self) -> tokio::sync::futures::Notified<'_> {
        self.gone.notified()
    }

    /// A seat is given back.
    fn vacate(&self, tenant: &str) {
        let mut census = lock(&self.census);
        census.sessions -= 1;
        if let Some(held) = census.by_tenant.get_mut(tenant) {
            *held -= 1;
            if *held == 0 {
                census.by_tenant.remove(tenant);
            }
        }
        let empty = census.sessions == 0;
        drop(census);
        metrics::SESSIONS.dec();
        if empty {
            self.empty.notify_waiters();
        }
    }

    fn shard(&self, session: &SessionId) -> MutexGuard<'_, HashSet<Known>> {
        lock(&self.shards[self.hasher.hash_one(session) as usize % SHARDS])
    }
}

/// One session's being known, and its seat. Given back when dropped, in that order.
pub(crate) struct Enrolled {
    registry: Arc<Registry>,
    handle: Arc<SessionHandle>,
}

impl Drop for Enrolled {
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

/// One session's room. Given back when dropped.
pub(crate) struct Seat {
    registry: Arc<Registry>,
    tenant: Arc<str>,
    /// Whoever is enrolled in it gives it back.
    is_passed_on: bool,
}

impl Drop for Seat {
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
