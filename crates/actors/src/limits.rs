//! The limits of the whole cluster at this node: the part that its threads share.
//!
//! Each limit that is in use has an entry here, and one at the node that owns it. [`budget::limit`]
//! decides; `routing` carries demand and shares between nodes. No request waits for another node, except
//! one that finds a new limit without a share, for an interval at most.

mod entry;
mod owned;
mod wire;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use budget::limit::{CountOfNode, Grant, Member, Rate, RateOfNode};
use bytes::Bytes;
use prost::Message as _;
use tenants::limit_id;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

pub use entry::{CountEntry, Counted, RateEntry, Taken};
use owned::Owned;
use wire::{LimitReport, LimitReports, LimitShares};

use crate::metrics;

/// Most entries of one tenant: its clients beyond that have one entry together.
const ENTRIES_OF_TENANT_MAX: usize = 10_000;

/// The subject of the clients that have an entry together. No principal and no key has this name.
const OTHERS: &str = "\n";

/// Most reports in one message. More take turns.
const REPORTS_MAX: usize = 2_000;

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
    /// The sessions of each tenant whose number is limited.
    sessions: HashMap<Arc<str>, Arc<CountEntry>>,
    by_tenant: HashMap<u64, usize>,
    /// Where the next message begins, if one does not hold all reports.
    turn: usize,
}

/// What this node reports to the owner of some limits.
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
            owned: Mutex::default(),
            shares: Notify::new(),
            wanted: Arc::default(),
        }))
    }

    /// The time since the start of these limits.
    pub fn now(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// The entry of a rate: of this name, and of the client or key to which it belongs. Not for each
    /// request: threads keep the entry until it is forgotten.
    pub fn rate(&self, tenant: &str, name: &str, subject: &str, rate: Rate) -> Arc<RateEntry> {
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
            Arc::new(RateEntry::new(id, hash, state, &self.0.wanted))
        });
        entry.change(rate, nodes, now);
        Arc::clone(entry)
    }

    /// The entry of a count.
    pub fn count(&self, tenant: &str, name: &str, max: u64) -> Arc<CountEntry> {
        let (now, nodes) = (self.now(), self.nodes());
        let mut table = self.table();
        let id = limit_id(tenant, name, "");
        let entry = table.counts.entry(id).or_insert_with(|| {
            let state = match self.0.is_alone {
                true => CountOfNode::alone(max, now),
                false => CountOfNode::new(max, nodes, now),
            };
            Arc::new(CountEntry::new(id, tenant_hash(tenant), state, &self.0.wanted))
        });
        entry.change(max, nodes, now);
        Arc::clone(entry)
    }

    /// Sets the most sessions that tenants may have in the cluster. Other tenants have no limit.
    pub fn limit_sessions(&self, limits: impl IntoIterator<Item = (Arc<str>, u32)>) {
        let entries = limits.into_iter().map(|(tenant, max)| {
            let entry = self.count(&tenant, "sessions", u64::from(max));
            (tenant, entry)
        });
        let entries = entries.collect();
        self.table().sessions = entries;
    }

    /// The sessions of a tenant, if their number is limited.
    pub fn sessions(&self, tenant: &str) -> Option<Arc<CountEntry>> {
        self.table().sessions.get(tenant).cloned()
    }

    /// Sets how many sessions each tenant has on this node.
    pub(crate) fn set_sessions(&self, held: impl FnOnce() -> Vec<(Arc<str>, usize)>) {
        let now = self.now();
        let sessions = self.table().sessions.clone();
        if sessions.is_empty() {
            return;
        }
        let held: HashMap<_, _> = held().into_iter().collect();
        for (tenant, entry) in sessions {
            entry.set_held(held.get(&tenant).copied().unwrap_or(0) as u64, now);
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

    /// Begins a round: forgets what is not used any more, and notes the number of live nodes.
    pub(crate) fn begin_round(&self, nodes: usize) {
        let now = self.now();
        self.0.nodes.store(nodes.max(1), Ordering::Relaxed);
        let mut table = self.table();
        let Table { rates, counts, sessions, by_tenant, .. } = &mut *table;
        rates.retain(|_, entry| {
            entry.update(nodes, now);
            let is_kept = !entry.forget(now);
            if !is_kept && let Some(count) = by_tenant.get_mut(&entry.tenant) {
                *count -= 1;
            }
            is_kept
        });
        by_tenant.retain(|_, count| *count > 0);
        counts.retain(|id, entry| {
            entry.update(nodes, now);
            sessions.values().any(|kept| kept.id == *id) || !entry.forget(now)
        });
        drop(table);
        self.owned().forget(now);
    }

    /// What is to be reported, for each owner. `only_new`: what requests wait for.
    pub(crate) fn rounds(
        &self,
        only_new: bool,
        from: u64,
        mut owner: impl FnMut(u64) -> Option<u64>,
    ) -> Vec<(u64, Round)> {
        if self.0.is_alone {
            return Vec::new();
        }
        let now = self.now();
        let mut by_owner: HashMap<u64, Vec<LimitReport>> = HashMap::new();
        let mut table = self.table();
        let all = table.rates.len();
        let turn = if all > REPORTS_MAX { table.turn % all } else { 0 };
        let rates = table.rates.values().skip(turn).chain(table.rates.values().take(turn));
        let rates = rates.filter(|entry| !only_new || entry.wants_share());
        for entry in rates {
            let Some(owner) = owner(entry.tenant) else { continue };
            let reports = by_owner.entry(owner).or_default();
            if reports.len() < REPORTS_MAX {
                reports.extend(entry.report(now));
            }
        }
        for entry in table.counts.values().filter(|entry| !only_new || entry.wants_share()) {
            let Some(owner) = owner(entry.tenant) else { continue };
            by_owner.entry(owner).or_default().extend(entry.report(now));
        }
        table.turn = turn.wrapping_add(REPORTS_MAX);
        drop(table);
        by_owner.retain(|_, reports| !reports.is_empty());
        let round = |(owner, reports): (u64, Vec<LimitReport>)| {
            let ids = reports.iter().map(LimitReport::id).collect();
            let message = LimitReports { reports, from }.encode_to_vec().into();
            (owner, Round { message, at: now, ids })
        };
        by_owner.into_iter().map(round).collect()
    }

    /// Answers the reports of a node, as the owner of the limits. `None` for bytes that no node sends.
    pub(crate) fn answer(&self, reports: Bytes, members: &[Member]) -> Option<Bytes> {
        let LimitReports { reports, from } = LimitReports::decode(reports).ok()?;
        let now = self.now();
        let mut owned = self.owned();
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
