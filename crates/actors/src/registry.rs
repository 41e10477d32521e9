//! The sessions on this node, and the bounds of their number.
//!
//! Dropping an entry and a slot gives them back, so that a session that ends leaves neither behind.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use budget::{Budget, Exhausted, Held, Share, ShareLimits};
use cluster::Load;
use conversation::Refusal;
use protocol::SessionId;
use tenants::{Principal, Tenant};
use tokio::sync::{Notify, watch};

use crate::metrics;
use crate::session::SessionHandle;
use crate::session_bytes::SessionBytes;
use crate::unconfirmed::Unconfirmed;

/// The number of shards, chosen so that threads seldom wait for each other.
const SHARDS: usize = 16;

/// The sessions of a node. Bounded by its slots.
pub(crate) struct Registry {
    hasher: RandomState,
    shards: [Mutex<HashSet<ById>>; SHARDS],
    slots: Mutex<Slots>,
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

/// The slots of the node, divided among the tenants.
struct Slots {
    budget: Budget,
    /// The shares of tenants that have no settings here, while they have slots. A take-over can
    /// bring sessions of such tenants.
    unnamed: HashMap<Arc<str>, Share>,
    /// The most sessions of each tenant that was named.
    maxima: HashMap<Arc<str>, usize>,
    /// The number of taken slots.
    taken: usize,
}

impl Slots {
    /// Divides half of the slots among these tenants. A tenant that may have fewer sessions than its
    /// part has a smaller part.
    fn new(sessions_max: usize, tenants: impl ExactSizeIterator<Item = (Arc<str>, usize)>) -> Self {
        let budget = Budget::new(sessions_max, []);
        let mut slots = Self { budget, unnamed: HashMap::new(), maxima: HashMap::new(), taken: 0 };
        slots.divide(tenants);
        slots
    }

    /// Divides half of the slots anew.
    fn divide(&mut self, tenants: impl ExactSizeIterator<Item = (Arc<str>, usize)>) {
        let (sessions_max, count) = (self.budget.max(), tenants.len());
        self.maxima = tenants.collect();
        let shares = self.maxima.iter().map(|(tenant, most)| {
            let ShareLimits { min, .. } =
                ShareLimits::of_one(sessions_max, count, usize::MAX, Some(*most));
            // Restored sessions may exceed the tenant's maximum.
            (Arc::clone(tenant), ShareLimits { min, max: sessions_max })
        });
        let shares: Vec<_> = shares.collect();
        // A tenant that had sessions before it had settings goes on with the same share.
        for (tenant, _) in &shares {
            if let Some(share) = self.unnamed.remove(tenant) {
                self.budget.name(share);
            }
        }
        self.budget.divide(shares);
    }

    /// Forgets a tenant that has no settings any more. The slots that it still has stay counted.
    fn forget_tenant(&mut self, tenant: &str) {
        let share = self.budget.remove(tenant).filter(|share| share.used() > 0);
        self.unnamed.extend(share.map(|share| (Arc::clone(share.tenant()), share)));
    }

    fn share(&mut self, tenant: &Arc<str>) -> Share {
        let budget = &self.budget;
        budget.share(tenant).unwrap_or_else(|| {
            let new = || budget.unnamed_share(tenant);
            self.unnamed.entry(Arc::clone(tenant)).or_insert_with(new).clone()
        })
    }

    /// Takes a slot if the tenant has fewer than `tenant_max`.
    fn take(&mut self, tenant: &Arc<str>, tenant_max: usize) -> Result<Held, Exhausted> {
        let share = self.share(tenant);
        let taken = if share.used() < tenant_max { share.take(1) } else { Err(Exhausted) };
        if taken.is_ok() {
            self.taken += 1;
        }
        self.forget_unused(&share);
        taken
    }

    fn give_back(&mut self, slot: Held) {
        let share = slot.share().clone();
        drop(slot);
        self.taken -= 1;
        self.forget_unused(&share);
    }

    fn forget_unused(&mut self, share: &Share) {
        if share.used() == 0 {
            self.unnamed.remove(share.tenant());
        }
    }
}

impl Registry {
    /// Creates an empty registry that keeps `load` up to date. Half of the `sessions_max` slots is
    /// divided among these tenants, each with the most sessions that it may have.
    pub(crate) fn new(
        load: Load,
        sessions_max: usize,
        tenants: impl ExactSizeIterator<Item = (Arc<str>, usize)>,
    ) -> Self {
        Self {
            load,
            intake: watch::Sender::new(Intake::Open),
            hasher: RandomState::new(),
            shards: Default::default(),
            slots: Mutex::new(Slots::new(sessions_max, tenants)),
            unconfirmed: Unconfirmed::default(),
            empty: Notify::new(),
            gone: Notify::new(),
        }
    }

    /// Divides half of the slots anew among these tenants, each with the most sessions that it may have.
    /// See [`Budget::divide`].
    pub(crate) fn divide(&self, tenants: impl ExactSizeIterator<Item = (Arc<str>, usize)>) {
        lock(&self.slots).divide(tenants);
    }

    /// Forgets a tenant that has no settings any more.
    pub(crate) fn forget_tenant(&self, tenant: &str) {
        lock(&self.slots).forget_tenant(tenant);
    }

    /// Takes a slot for a new session, if the node and the tenant have a free one, and the tenant's
    /// sessions may keep more bytes.
    pub(crate) fn take_slot(
        self: &Arc<Self>,
        tenant: &Tenant,
        bytes: &SessionBytes,
    ) -> Result<Slot, Refusal> {
        let is_store_full = bytes.is_store_full(&tenant.name);
        if is_store_full {
            tracing::warn!(
                tenant = &*tenant.name,
                bytes = bytes.used_in_store(&tenant.name),
                "a session was refused: the sessions of its tenant keep more than twice as many bytes \
                 in the store as they may, those that sleep included; raise \
                 tenants.*.limits.session_bytes_max, or wait until sleeping sessions expire"
            );
        }
        if bytes.share_of_session(&tenant.name).is_exceeded() || is_store_full {
            metrics::SESSIONS_REFUSED.inc();
            return Err(Refusal::TooManySessions);
        }
        self.take_slot_within(&tenant.name, tenant.sessions_max)
    }

    /// Takes a slot for a restored session, if the node has a free one. The tenant's bound is not
    /// checked: the session was counted against it when it was created.
    pub(crate) fn take_slot_for_restored(
        self: &Arc<Self>,
        tenant: &Arc<str>,
    ) -> Result<Slot, Refusal> {
        self.take_slot_within(tenant, usize::MAX)
    }

    fn take_slot_within(
        self: &Arc<Self>,
        tenant: &Arc<str>,
        tenant_max: usize,
    ) -> Result<Slot, Refusal> {
        let mut slots = lock(&self.slots);
        if *self.intake.borrow() >= Intake::Refusing {
            return Err(Refusal::Stopping);
        }
        let Ok(held) = slots.take(tenant, tenant_max) else {
            metrics::SESSIONS_REFUSED.inc();
            return Err(Refusal::TooManySessions);
        };
        self.load.set(slots.taken as u64);
        drop(slots);
        metrics::SESSIONS.inc();
        Ok(Slot { registry: Arc::clone(self), held: Some(held) })
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
        let registration = Registration {
            registry: Arc::clone(&slot.registry),
            handle: Arc::clone(handle),
            slot: slot.held.take(),
        };
        Some(registration)
    }

    /// Waits for the tenant's turn to create a session, if it has as many sessions without a
    /// completed handshake as it may.
    pub(crate) async fn turn(&self, tenant: &str, most: usize) -> Result<(), Refusal> {
        match self.unconfirmed.wait(tenant, most, Instant::now()) {
            Some(Duration::ZERO) => Ok(()),
            Some(wait) => {
                tokio::time::sleep(wait).await;
                Ok(())
            }
            None => {
                metrics::SESSIONS_REFUSED.inc();
                Err(Refusal::TooManySessions)
            }
        }
    }

    /// Adds a new session to those whose clients have not completed the handshake. At the bound the
    /// oldest one of the tenant's busiest client ends.
    pub(crate) fn add_unconfirmed(
        &self,
        handle: &Arc<SessionHandle>,
        client: Option<IpAddr>,
        most: usize,
    ) {
        if let Some(evicted) = self.unconfirmed.add(handle, client, most) {
            if evicted.handle().evict() {
                metrics::UNCONFIRMED_EVICTED.inc();
            } else {
                self.unconfirmed.put_back(evicted);
            }
        }
    }

    /// Whether the session is here, for any principal.
    pub(crate) fn knows(&self, session: &SessionId) -> bool {
        self.shard(session).contains(session)
    }

    /// The session with this id, of any principal: for operators.
    pub(crate) fn get(&self, session: &SessionId) -> Option<Arc<SessionHandle>> {
        self.shard(session).get(session).map(|ById(handle)| Arc::clone(handle))
    }

    /// The sessions that match: for operators.
    pub(crate) fn collect(
        &self,
        matches: impl Fn(&SessionHandle) -> bool,
    ) -> Vec<Arc<SessionHandle>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = lock(shard);
            found.extend(shard.iter().map(|ById(handle)| handle).filter(|h| matches(h)).cloned());
        }
        found
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
        lock(&self.slots).taken
    }

    /// The number of sessions of each tenant that has any.
    pub(crate) fn sessions_by_tenant(&self) -> Vec<(Arc<str>, usize)> {
        let slots = lock(&self.slots);
        let named = slots.budget.shares();
        let all = named.iter().chain(slots.unnamed.values());
        all.map(|share| (Arc::clone(share.tenant()), share.used())).collect()
    }

    /// The most sessions of each tenant that the settings have.
    pub(crate) fn sessions_maxima(&self) -> HashMap<Arc<str>, usize> {
        lock(&self.slots).maxima.clone()
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
        let _slots = lock(&self.slots);
        self.advance_intake(Intake::Refusing);
    }

    /// Accepts sessions again, unless the registry is closed. Returns whether it accepts them.
    pub(crate) fn reopen(&self) -> bool {
        let _slots = lock(&self.slots);
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
        let _slots = lock(&self.slots);
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
    fn vacate(&self, slot: Held) {
        let mut slots = lock(&self.slots);
        slots.give_back(slot);
        self.load.set(slots.taken as u64);
        let empty = slots.taken == 0;
        drop(slots);
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
    /// `None` only while it is dropped.
    slot: Option<Held>,
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
        if let Some(slot) = self.slot.take() {
            self.registry.vacate(slot);
        }
    }
}

/// One of the sessions that a tenant may have at this node. Dropping it gives it back.
pub(crate) struct Slot {
    registry: Arc<Registry>,
    /// `None` once a registration has it.
    held: Option<Held>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.registry.vacate(held);
        }
    }
}

/// No code panics under these locks, so poisoning is ignored.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(tenants: [(&str, usize); 2]) -> Slots {
        Slots::new(100, tenants.map(|(name, most)| (name.into(), most)).into_iter())
    }

    fn taken_by(slots: &mut Slots, tenant: &str, tenant_max: usize) -> Vec<Held> {
        let tenant = tenant.into();
        std::iter::from_fn(|| slots.take(&tenant, tenant_max).ok()).collect()
    }

    #[test]
    fn a_quarter_of_the_slots_is_kept_for_each_of_two_tenants() {
        let mut slots = slots([("one", 1_000), ("other", 1_000)]);
        assert_eq!(taken_by(&mut slots, "one", 1_000).len(), 75);
    }

    #[test]
    fn no_more_slots_are_kept_for_a_tenant_than_it_may_have_sessions() {
        let mut slots = slots([("large", 1_000), ("small", 5)]);
        let large = taken_by(&mut slots, "large", 1_000);
        assert_eq!(large.len(), 95);
        assert_eq!(taken_by(&mut slots, "small", 5).len(), 5);
    }

    #[test]
    fn a_restored_session_may_exceed_the_maximum_of_its_tenant() {
        let mut slots = slots([("one", 2), ("other", 2)]);
        let mut taken = taken_by(&mut slots, "one", 2);
        assert_eq!(taken.len(), 2);
        taken.extend(slots.take(&"one".into(), usize::MAX));
        assert_eq!(taken.len(), 3);
        taken.into_iter().for_each(|slot| slots.give_back(slot));
        assert_eq!((slots.taken, slots.budget.used()), (0, 0));
    }

    #[test]
    fn slots_that_are_divided_anew_are_no_more_than_before() {
        let mut slots = Slots::new(100, [("one".into(), 1_000)].into_iter());
        let mut of_one = taken_by(&mut slots, "one", 1_000);
        assert_eq!(of_one.len(), 100);
        slots.divide([("one".into(), 1_000), ("late".into(), 1_000)].into_iter());
        assert!(taken_by(&mut slots, "late", 1_000).is_empty(), "all are taken");
        of_one.drain(..40).for_each(|slot| slots.give_back(slot));
        assert_eq!(taken_by(&mut slots, "one", 1_000).len(), 15, "a quarter is kept for the other");
    }

    #[test]
    fn a_tenant_has_one_share_before_during_and_after_it_has_settings() {
        let mut slots = slots([("one", 40), ("other", 40)]);
        let mut of_late = taken_by(&mut slots, "late", 3);
        let three = ["one", "other", "late"].map(|name| (name.into(), 4));
        slots.divide(three.clone().into_iter());
        of_late.extend(taken_by(&mut slots, "late", 4));
        assert_eq!(of_late.len(), 4, "it had three already");
        slots.divide(three.into_iter().take(2));
        slots.forget_tenant("late");
        assert_eq!(slots.unnamed.len(), 1);
        of_late.into_iter().for_each(|slot| slots.give_back(slot));
        assert_eq!((slots.taken, slots.budget.used(), slots.unnamed.len()), (0, 0, 0));
    }

    #[test]
    fn a_tenant_without_settings_is_counted_while_it_has_slots() {
        let mut slots = slots([("one", 40), ("other", 40)]);
        let taken = taken_by(&mut slots, "elsewhere", 3);
        assert_eq!((taken.len(), slots.unnamed.len()), (3, 1));
        taken.into_iter().for_each(|slot| slots.give_back(slot));
        assert_eq!((slots.taken, slots.unnamed.len()), (0, 0));
        assert_eq!(taken_by(&mut slots, "elsewhere", 1_000).len(), 50, "the rest is kept");
    }
}
