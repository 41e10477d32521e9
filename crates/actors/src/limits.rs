//! The limits of the whole cluster at this node: the part that its threads share.
//!
//! Each limit that is in use has an entry here, and one at the node that owns it. [`budget::limit`]
//! decides; `routing` carries demand and shares between nodes. No request waits for another node, except
//! one that finds a new limit without a share, for an interval at most.

mod entry;
mod owned;
mod round;
#[cfg(test)]
mod tests;
mod wire;

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backends::stdio::{LimitReached, ProcessLimit, TakenProcess};
use budget::limit::{CountOfNode, Grant, INTERVAL, Member, Rate, RateOfNode, Refused};
use bytes::Bytes;
use prost::Message as _;
use tenants::{ClusterLimits, limit_id};
use thin_vec::ThinVec;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

pub use entry::{CountEntry, Counted, PendingSession, RateEntry, Taken};
use owned::Owned;
use round::{OfOwner, REPORTS_MAX, Reported};
use wire::{LimitReport, LimitReports, LimitShares};

use crate::metrics;

/// Most entries of one tenant: its clients beyond that have one entry together.
const ENTRIES_OF_TENANT_MAX: usize = 10_000;

/// The subject of the clients that have an entry together. No principal and no key has this name.
const OTHERS: &str = "\n";

/// The limits of the whole cluster at this node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeLimits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    started: Instant,
    is_alone: bool,
    /// The number of live nodes.
    nodes: AtomicUsize,
    table: Mutex<Table>,
    /// Whether a tenant has a limit of the bytes of events.
    has_log_limits: AtomicBool,
    owned: Mutex<Owned>,
    /// Notified when shares have arrived.
    shares: Notify,
    /// Notified when a request waits for a first share.
    wanted: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Table {
    rates: HashMap<u128, Arc<RateEntry>>,
    counts: HashMap<u128, Arc<CountEntry>>,
    /// What is limited of each tenant whether requests ask for it or not. It is not forgotten.
    tenants: HashMap<Arc<str>, OfTenant>,
    by_tenant: HashMap<u64, usize>,
}

/// What is limited of a tenant whether requests ask for it or not.
#[derive(Clone, Debug, Default)]
struct OfTenant {
    sessions: Option<Arc<CountEntry>>,
    children: Option<Arc<CountEntry>>,
    exchanges: Option<Arc<CountEntry>>,
    log_bytes: Option<Arc<RateEntry>>,
}

impl OfTenant {
    fn has_count(&self, id: u128) -> bool {
        let counts = [&self.sessions, &self.children, &self.exchanges];
        counts.into_iter().flatten().any(|entry| entry.id == id)
    }
}

/// The limits of one message to their owner, which is not written yet.
pub(crate) struct Unreported(Vec<Reported>);

/// What this node reports to the owner of some limits, in one message.
pub(crate) struct Round {
    /// The message.
    pub(crate) message: Bytes,
    /// The time of the report.
    at: Duration,
    ids: Vec<u128>,
}

/// The number by which the owner of a tenant's limits is found.
fn tenant_hash(tenant: &str) -> u64 {
    limit_id(tenant, "", "") as u64
}

impl NodeLimits {
    /// The limits of a node without any in use.
    pub(crate) fn new(is_alone: bool) -> Self {
        Self(Arc::new(Shared {
            started: Instant::now(),
            is_alone,
            nodes: AtomicUsize::new(1),
            table: Mutex::default(),
            has_log_limits: AtomicBool::new(false),
            owned: Mutex::default(),
            shares: Notify::new(),
            wanted: Arc::default(),
        }))
    }

    /// The time since the start of these limits.
    pub fn now(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// The entry of a rate: of this name and kind, and of the client or key to which it belongs. Not for
    /// each request: threads keep the entry until it is forgotten.
    pub fn rate(
        &self,
        tenant: &str,
        (name, kind): (&str, &'static str),
        subject: &str,
        rate: Rate,
    ) -> Arc<RateEntry> {
        let (now, nodes) = (self.now(), self.nodes());
        let hash = tenant_hash(tenant);
        let mut table = self.table();
        let mut id = limit_id(tenant, name, subject);
        if !table.rates.contains_key(&id)
            && table.by_tenant.get(&hash).is_some_and(|count| *count >= ENTRIES_OF_TENANT_MAX)
        {
            id = limit_id(tenant, name, OTHERS);
        }
        let Table { rates, by_tenant, .. } = &mut *table;
        let entry = rates.entry(id).or_insert_with(|| {
            *by_tenant.entry(hash).or_default() += 1;
            let state = match self.0.is_alone {
                true => RateOfNode::alone(rate, now),
                false => RateOfNode::new(rate, nodes, now),
            };
            let of = (hash, !subject.is_empty());
            Arc::new(RateEntry::new(id, of, (tenant.into(), kind), state, &self.0.wanted))
        });
        entry.change(rate, nodes, now);
        Arc::clone(entry)
    }

    /// The entry of a count.
    pub fn count(&self, tenant: &str, name: &'static str, max: u64) -> Arc<CountEntry> {
        let (now, nodes) = (self.now(), self.nodes());
        let mut table = self.table();
        let id = limit_id(tenant, name, "");
        let entry = table.counts.entry(id).or_insert_with(|| {
            let state = match self.0.is_alone {
                true => CountOfNode::alone(max, now),
                false => CountOfNode::new(max, nodes, now),
            };
            let (hash, shown) = (tenant_hash(tenant), (tenant.into(), name));
            let state = (state, self.0.started);
            Arc::new(CountEntry::new(id, hash, shown, state, &self.0.wanted))
        });
        entry.change(max, nodes, now);
        Arc::clone(entry)
    }

    /// Sets what tenants may have in the cluster. Other tenants have no limit.
    pub fn limit_tenants(&self, limits: impl IntoIterator<Item = (Arc<str>, Arc<ClusterLimits>)>) {
        let entries = limits.into_iter().map(|(tenant, limits)| {
            let count =
                |name, max: Option<u32>| max.map(|max| self.count(&tenant, name, u64::from(max)));
            let of_tenant = OfTenant {
                sessions: count("sessions", limits.sessions_max),
                children: count("children", limits.children_max),
                exchanges: count("exchanges", limits.exchanges_max),
                log_bytes: limits.log_bytes_per_day.map(|bytes| self.log_rate(&tenant, bytes)),
            };
            (tenant, of_tenant)
        });
        let entries: HashMap<_, _> = entries.collect();
        let has_log_limits = entries.values().any(|of_tenant| of_tenant.log_bytes.is_some());
        self.table().tenants = entries;
        self.0.has_log_limits.store(has_log_limits, Ordering::Relaxed);
    }

    /// The rate at which bytes of events may be added: those of a day, a tenth of them at once.
    fn log_rate(&self, tenant: &str, bytes_per_day: u64) -> Arc<RateEntry> {
        let bytes = bytes_per_day as f64;
        let rate = Rate { per_sec: bytes / 86_400.0, burst: bytes / 10.0 };
        // No rate in settings has this name.
        self.rate(tenant, ("\nlog_bytes", "log_bytes"), "", rate)
    }

    /// The sessions of a tenant, if their number is limited.
    pub fn sessions(&self, tenant: &str) -> Option<Arc<CountEntry>> {
        self.table().tenants.get(tenant)?.sessions.clone()
    }

    /// The bytes of events of a tenant, if they are limited.
    pub fn log_bytes(&self, tenant: &str) -> Option<Arc<RateEntry>> {
        self.table().tenants.get(tenant)?.log_bytes.clone()
    }

    /// Counts bytes of events that a session adds to its log.
    pub(crate) fn charge_log(&self, tenant: &str, bytes: impl FnOnce() -> usize) {
        if self.0.has_log_limits.load(Ordering::Relaxed)
            && let Some(entry) = self.log_bytes(tenant)
        {
            entry.charge(bytes() as f64, self.now());
        }
    }

    /// Counts a request whose answer takes another way than its response, if the tenant's requests in
    /// flight are limited.
    fn hold_exchange(&self, tenant: &str) -> Option<Counted> {
        let entry = self.table().tenants.get(tenant)?.exchanges.clone()?;
        Some(entry.hold(self.now()))
    }

    /// Takes one of the server processes of a tenant. `Ok(None)`: their number has no limit.
    pub(crate) async fn take_child(&self, tenant: &str) -> Result<Option<Counted>, Refused> {
        let until = Instant::now() + INTERVAL;
        loop {
            let mut arrived = std::pin::pin!(self.shares_arrived());
            arrived.as_mut().enable();
            let entry = self.table().tenants.get(tenant).and_then(|of| of.children.clone());
            let Some(entry) = entry else { return Ok(None) };
            match entry.take(self.now()) {
                Some(Ok(counted)) => return Ok(Some(counted)),
                Some(Err(Refused::Wait)) if Instant::now() < until => {}
                Some(Err(refused)) => return Err(refused),
                None => return Ok(None),
            }
            let _ = tokio::time::timeout_at(until, arrived).await;
        }
    }

    /// How much of each limit is used at this node: the tenant, the kind of the limit, and the part.
    pub(crate) fn used(&self) -> Vec<(Arc<str>, &'static str, f64)> {
        let (now, table) = (self.now(), self.table());
        let rates = table.rates.values().filter_map(|entry| entry.used(now));
        rates.chain(table.counts.values().filter_map(|entry| entry.used())).collect()
    }

    /// Sets how many sessions each tenant has on this node. Those that are pending are added.
    pub(crate) fn set_sessions(&self, held: impl FnOnce() -> Vec<(Arc<str>, usize)>) {
        let now = self.now();
        let table = self.table();
        // The pending ones first: one that becomes a session meanwhile counts twice for an interval, and
        // would otherwise not count.
        let of_tenant = |(tenant, of): (&Arc<str>, &OfTenant)| {
            let entry = of.sessions.clone()?;
            Some((Arc::clone(tenant), entry.pending(), entry))
        };
        let sessions: Vec<_> = table.tenants.iter().filter_map(of_tenant).collect();
        drop(table);
        if sessions.is_empty() {
            return;
        }
        let held: HashMap<_, _> = held().into_iter().collect();
        for (tenant, pending, entry) in sessions {
            let held = held.get(&tenant).copied().unwrap_or(0);
            entry.set_held((held + pending) as u64, now);
        }
    }

    /// Resolves when shares have arrived after the call.
    pub fn shares_arrived(&self) -> Notified<'_> {
        self.0.shares.notified()
    }

    /// Resolves when a request waits for a first share.
    pub(crate) async fn share_wanted(&self) {
        self.0.wanted.notified().await;
    }

    /// Whether nothing is limited here now, and no limit is owned.
    pub(crate) fn is_unused(&self) -> bool {
        let table = self.table();
        table.rates.is_empty() && table.counts.is_empty() && self.owned().len() == 0
    }

    /// Shows the metrics.
    pub(crate) fn show(&self) {
        let table = self.table();
        let used = table.rates.len() + table.counts.len();
        drop(table);
        metrics::LIMITS_USED.set(used as i64);
        metrics::LIMITS_OWNED.set(self.owned().len() as i64);
    }

    /// Notes the live nodes, also while no limit is in use: the next report may be for a limit that a lost
    /// node has owned.
    pub(crate) fn note_members(&self, members: &[Member]) {
        self.owned().note_members(members, self.now());
    }

    /// Begins a round: forgets what is not used any more, and notes the number of live nodes.
    pub(crate) fn begin_round(&self, nodes: usize) {
        let now = self.now();
        self.0.nodes.store(nodes.max(1), Ordering::Relaxed);
        let mut table = self.table();
        let Table { rates, counts, tenants, by_tenant, .. } = &mut *table;
        rates.retain(|_, entry| {
            entry.update(nodes, now);
            let logs = || tenants.values().filter_map(|of_tenant| of_tenant.log_bytes.as_ref());
            let is_kept = logs().any(|kept| Arc::ptr_eq(kept, entry)) || !entry.forget(now);
            if !is_kept && let Some(count) = by_tenant.get_mut(&entry.tenant) {
                *count -= 1;
            }
            is_kept
        });
        by_tenant.retain(|_, count| *count > 0);
        counts.retain(|id, entry| {
            entry.update(nodes, now);
            tenants.values().any(|of_tenant| of_tenant.has_count(*id)) || !entry.forget(now)
        });
        drop(table);
        self.owned().forget(now);
    }

    /// What is to be reported, for each owner: the limits of each message. `only_new`: what requests wait for.
    pub(crate) fn unreported(
        &self,
        only_new: bool,
        mut owner: impl FnMut(u64) -> Option<u64>,
    ) -> Vec<(u64, Unreported)> {
        if self.0.is_alone {
            return Vec::new();
        }
        let mut by_owner: HashMap<u64, OfOwner> = HashMap::new();
        let mut add = |tenant, reported| {
            if let Some(owner) = owner(tenant) {
                by_owner.entry(owner).or_default().add(reported);
            }
        };
        let table = self.table();
        for entry in table.rates.values().filter(|entry| !only_new || entry.wants_share()) {
            add(entry.tenant, Reported::Rate(Arc::clone(entry)));
        }
        for entry in table.counts.values().filter(|entry| !only_new || entry.wants_share()) {
            add(entry.tenant, Reported::Count(Arc::clone(entry)));
        }
        drop(table);
        let messages = |(owner, of_owner): (u64, OfOwner)| {
            of_owner.messages().into_iter().map(move |message| (owner, Unreported(message)))
        };
        by_owner.into_iter().flat_map(messages).collect()
    }

    /// Writes a message. `None`: there is no demand, and no share.
    pub(crate) fn report(&self, Unreported(limits): &Unreported, from: u64) -> Option<Round> {
        let now = self.now();
        let reports: Vec<_> = limits.iter().filter_map(|limit| limit.report(now)).collect();
        if reports.is_empty() {
            return None;
        }
        let ids = reports.iter().map(LimitReport::id).collect();
        let message = LimitReports { reports, from }.encode_to_vec().into();
        Some(Round { message, at: now, ids })
    }

    /// Answers the reports of a node, as the owner of the limits. `None` for bytes that no node sends.
    pub(crate) fn answer(&self, reports: Bytes, members: &[Member]) -> Option<Bytes> {
        let LimitReports { reports, from } = LimitReports::decode(reports).ok()?;
        let now = self.now();
        let mut owned = self.owned();
        owned.note_members(members, now);
        let shares = reports.iter().take(2 * REPORTS_MAX);
        let shares = shares.map(|report| owned.report(from, report, members, now)).collect();
        drop(owned);
        Some(LimitShares { shares }.encode_to_vec().into())
    }

    /// Applies the answer to a round.
    pub(crate) fn apply(&self, round: &Round, shares: Bytes) {
        let Ok(LimitShares { shares }) = LimitShares::decode(shares) else { return };
        let now = self.now();
        let table = self.table();
        for (id, share) in round.ids.iter().zip(shares) {
            let Some(grant) = share.grant() else { continue };
            self.apply_one(&table, *id, grant, round.at, now);
        }
        drop(table);
        self.0.shares.notify_waiters();
    }

    fn apply_one(&self, table: &Table, id: u128, grant: Grant, at: Duration, now: Duration) {
        if let Some(entry) = table.rates.get(&id) {
            entry.grant(grant, at, now);
        } else if let Some(entry) = table.counts.get(&id) {
            entry.grant(grant, at, now);
        }
    }

    fn nodes(&self) -> usize {
        self.0.nodes.load(Ordering::Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owned(&self) -> MutexGuard<'_, Owned> {
        self.0.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The requests of a session that are in flight, as metrics and a limit count them.
#[derive(Debug, Default)]
pub(crate) struct CountedExchanges {
    count: usize,
    /// Those that a limit counts here.
    held: ThinVec<Counted>,
}

impl CountedExchanges {
    /// Sets how many there are. With `limits`, answers do not end the exchange in which their request came,
    /// so the front does not hold them.
    pub(crate) fn set(&mut self, count: usize, limits: Option<&NodeLimits>, tenant: &str) {
        if count == self.count {
            return;
        }
        metrics::EXCHANGES.add(count as i64 - self.count as i64);
        self.count = count;
        self.held.truncate(count);
        while self.held.len() < count
            && let Some(counted) = limits.and_then(|limits| limits.hold_exchange(tenant))
        {
            self.held.push(counted);
        }
    }
}

impl ProcessLimit for NodeLimits {
    fn take<'a>(&'a self, tenant: &'a str) -> TakenProcess<'a> {
        Box::pin(async move {
            let counted = self.take_child(tenant).await.map_err(|_| LimitReached)?;
            Ok(Box::new(counted) as Box<dyn Any + Send + Sync>)
        })
    }
}
