//! The sessions on this node, and the bounds of their number.
//!
//! Dropping an entry and a slot gives them back, so that a session that ends leaves neither behind.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use budget::Share;
use cluster::Load;
use conversation::Refusal;
use protocol::SessionId;
use tenants::{Principal, Tenant};
use tokio::sync::{Notify, watch};

use crate::metrics;
use crate::session::SessionHandle;
use crate::unconfirmed::Unconfirmed;

/// The number of shards, chosen so that threads seldom wait for each other.
const SHARDS: usize = 16;

/// The sessions of a node. Bounded by its slots.
pub(crate) struct Registry {
    hasher: RandomState,
    shards: [Mutex<HashSet<ById>>; SHARDS],
    counts: Mutex<Counts>,
    /// The sessions whose clients have not completed the handshake.
    unconfirmed: Unconfirmed,
    /// The number of sessions that the lease announces.
    load: Load,
    intake: watch::Sender<Intake>,
    empty: Notify,
    /// Notified when a session was removed.
    gone: Notify,
}

/// Whether this node accepts sessions. The state only advances, except by [`Registry::reopen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Intake {
    /// The node accepts sessions.
    Open,
    /// The node hands its sessions over to other nodes, and new ones as well.
    Draining,
    /// The node has no other to which it could hand sessions over: it ends its own, and refuses new
    /// ones.
    Refusing,
    /// The node refuses new sessions, for good.
    Closed,
}

/// The result of a lookup in the registry.
pub(crate) enum Lookup {
    /// The session is here. It may be about to leave.
    Here(Arc<SessionHandle>),
    /// The session belongs to another principal. The caller gets the same answer as for an unknown
    /// id (SES-04).
    Foreign,
    /// No such session on this node.
    Absent,
}

/// A registered session, hashed by its id.
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

/// The number of sessions, and the slots that are kept for tenants.
struct Counts {
    sessions: usize,
    by_tenant: HashMap<Arc<str>, usize>,
    /// The slots that are kept for each of the named tenants: no other tenant can take them.
    tenant_min: usize,
    /// The tenants with such slots.
    named: HashSet<Arc<str>>,
    /// How many of these slots are free.
    kept_free: usize,
}

impl Counts {
    /// Divides half of the slots among these tenants. An only tenant needs none.
    fn new(tenants: impl IntoIterator<Item = Arc<str>>, sessions_max: usize) -> Self {
        let named: HashSet<_> = tenants.into_iter().collect();
        let tenant_min = if named.len() > 1 { sessions_max / 2 / named.len() } else { 0 };
        let kept_free = tenant_min * named.len();
        Self { sessions: 0, by_tenant: HashMap::new(), tenant_min, named, kept_free }
    }

    fn of(&self, tenant: &str) -> usize {
        self.by_tenant.get(tenant).copied().unwrap_or(0)
    }

    /// Whether one of the tenant's own slots is the next that it takes or gives back, when it has
    /// `held`.
    fn is_own(&self, tenant: &str, held: usize) -> bool {
        held < self.tenant_min && self.named.contains(tenant)
    }

    fn add(&mut self, tenant: &Arc<str>) {
        self.kept_free -= usize::from(self.is_own(tenant, self.of(tenant)));
        self.sessions += 1;
        *self.by_tenant.entry(Arc::clone(tenant)).or_default() += 1;
    }

    fn remove(&mut self, tenant: &str) {
        self.sessions -= 1;
        if let Some(held) = self.by_tenant.get_mut(tenant) {
            *held -= 1;
            if *held == 0 {
                self.by_tenant.remove(tenant);
            }
        }
        self.kept_free += usize::from(self.is_own(tenant, self.of(tenant)));
    }
}

impl Registry {
    /// Creates an empty registry that keeps `load` up to date. Half of the slots is divided among
    /// these tenants.
    pub(crate) fn new(
        load: Load,
        tenants: impl IntoIterator<Item = Arc<str>>,
        sessions_max: usize,
    ) -> Self {
        Self {
            load,
            intake: watch::Sender::new(Intake::Open),
            hasher: RandomState::new(),
            shards: Default::default(),
            counts: Mutex::new(Counts::new(tenants, sessions_max)),
            unconfirmed: Unconfirmed::default(),
            empty: Notify::new(),
            gone: Notify::new(),
        }
    }

    /// Takes a slot for a new session, if the node and the tenant have a free one, and the tenant's
    /// sessions may keep more bytes.
    pub(crate) fn take_slot(
        self: &Arc<Self>,
        tenant: &Tenant,
        sessions_max: usize,
        share: &Share,
    ) -> Result<Slot, Refusal> {
        if share.is_exceeded() {
            metrics::SESSIONS_REFUSED.inc();
            return Err(Refusal::TooManySessions);
        }
        self.take_slot_within(&tenant.name, sessions_max, tenant.sessions_max)
    }

    /// Takes a slot for a restored session, if the node has a free one. The tenant's bound is not
    /// checked: the session was counted against it when it was created.
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
        if *self.intake.borrow() >= Intake::Refusing {
            return Err(Refusal::Stopping);
        }
        let held = counts.of(tenant);
        // Slots that are kept for other tenants are taken.
        let kept_for_others = counts.kept_free.saturating_sub(if counts.named.contains(tenant) {
            counts.tenant_min.saturating_sub(held)
        } else {
            0
        });
        if counts.sessions + kept_for_others >= sessions_max || held >= tenants_max {
            metrics::SESSIONS_REFUSED.inc();
            return Err(Refusal::TooManySessions);
        }
        counts.add(tenant);
        self.load.set(counts.sessions as u64);
        drop(counts);
        metrics::SESSIONS.inc();
        Ok(Slot { registry: Arc::clone(self), tenant: Arc::clone(tenant), is_passed_on: false })
    }

    /// Registers a session in its slot; `None` if its id is registered already.
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

    /// Adds a new session to those whose clients have not completed the handshake. At the bound the
    /// tenant's oldest such session ends.
    pub(crate) fn add_unconfirmed(&self, handle: &Arc<SessionHandle>, most: usize) {
        if let Some(oldest) = self.unconfirmed.add(handle, most) {
            if oldest.evict() {
                metrics::UNCONFIRMED_EVICTED.inc();
            } else {
                self.unconfirmed.put_back(oldest);
            }
        }
    }

    /// Whether the session is here, for any principal.
    pub(crate) fn knows(&self, session: &SessionId) -> bool {
        self.shard(session).contains(session)
    }

    /// Looks up a session for a principal of a tenant.
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

    /// The number of sessions here, including those that are leaving.
    pub(crate) fn sessions(&self) -> usize {
        lock(&self.counts).sessions
    }

    /// Whether this node hands over or ends its sessions.
    pub(crate) fn is_departing(&self) -> bool {
        *self.intake.borrow() != Intake::Open
    }

    /// Returns when this node begins to hand over or end its sessions.
    pub(crate) fn departed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut intake = self.intake.subscribe();
        async move {
            // An error means that the registry was dropped, and the connections end with it.
            let _ = intake.wait_for(|intake| *intake != Intake::Open).await;
        }
    }

    /// Starts to hand over sessions.
    pub(crate) fn drain(&self) {
        self.advance_intake(Intake::Draining);
    }

    /// Stops giving slots, until [`Registry::reopen`].
    pub(crate) fn refuse(&self) {
        let _counts = lock(&self.counts);
        self.advance_intake(Intake::Refusing);
    }

    /// Accepts sessions again, unless the registry is closed. Returns whether it accepts them.
    pub(crate) fn reopen(&self) -> bool {
        let _counts = lock(&self.counts);
        self.intake.send_if_modified(|intake| {
            let reopens = matches!(intake, Intake::Draining | Intake::Refusing);
            if reopens {
                *intake = Intake::Open;
            }
            reopens
        });
        *self.intake.borrow() == Intake::Open
    }

    /// Stops giving slots, for good.
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

    /// Calls `act` for every registered session.
    pub(crate) fn for_each(&self, act: impl Fn(&SessionHandle)) {
        for shard in &self.shards {
            lock(shard).iter().for_each(|ById(handle)| act(handle));
        }
    }

    /// Returns when no session is here. Create it before the call of `sessions`.
    pub(crate) fn empty(&self) -> tokio::sync::futures::Notified<'_> {
        self.empty.notified()
    }

    /// Returns when a session was removed. Enable it before the call of `find`.
    pub(crate) fn gone(&self) -> tokio::sync::futures::Notified<'_> {
        self.gone.notified()
    }

    /// Gives a slot back.
    fn vacate(&self, tenant: &str) {
        let mut counts = lock(&self.counts);
        counts.remove(tenant);
        self.load.set(counts.sessions as u64);
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

/// The entry of a session in the registry, and its slot. Dropping it gives both back, in that
/// order.
pub(crate) struct Registration {
    registry: Arc<Registry>,
    handle: Arc<SessionHandle>,
}

impl Registration {
    /// The client of the session has completed the handshake.
    pub(crate) fn confirm(&self) {
        self.registry.unconfirmed.remove(&self.handle);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut shard = self.registry.shard(&self.handle.session);
        let handle = shard.take(&self.handle.session);
        self.registry.unconfirmed.remove(&self.handle);
        // Releases the memory after a burst of sessions.
        if shard.len() * 4 < shard.capacity() && shard.capacity() > 64 {
            shard.shrink_to_fit();
        }
        drop(shard);
        drop(handle);
        self.registry.gone.notify_waiters();
        self.registry.vacate(self.handle.tenant());
    }
}

/// One of the sessions that a tenant may have at this node. Dropping it gives it back.
pub(crate) struct Slot {
    registry: Arc<Registry>,
    tenant: Arc<str>,
    /// Whether the registration gives the slot back.
    is_passed_on: bool,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_passed_on {
            self.registry.vacate(&self.tenant);
        }
    }
}

/// No code panics under these locks, so poisoning is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
