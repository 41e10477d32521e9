//! Divides a resource of the node among its tenants: bytes, or things that are counted.
//!
//! A [`Budget`] has a total. Each tenant has a [`Share`] of it, with a minimum and a maximum. A
//! tenant takes what is free, and never the minimum of another tenant: what tenants do not use of
//! their minima counts as used. A holder keeps its amount in a [`Held`], which gives it back when
//! it is dropped.
//!
//! An amount is taken in one of two ways. [`Share::take`] asks first and refuses. [`Held::set`]
//! records what is held already, and may exceed the share; the owner of a [`Budget::notifying`] is then
//! notified, and makes the tenant release something. A holder that keeps its amount only until it is complete is
//! a [`Growing`]: such holders do not stop one another for good.
//!
//! [`Budget::divide`] changes the bounds of all tenants while amounts are taken and released. It takes
//! nothing from a tenant that holds more than its new maximum.
//!
//! The crate has no dependencies and no clock. One lock guards the names of the tenants. A lock in
//! each share guards its bounds: those who take and release only read them. Another one guards the order of
//! the amounts that wait.

mod granule;
mod growing;
pub mod limit;
mod share;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

pub use granule::{GRANULE_BYTES, in_granules};
pub use growing::Growing;
pub use share::{Exhausted, Held, Share};

/// The bounds of a tenant's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareLimits {
    /// The amount that no other tenant can take.
    pub min: usize,
    /// The most that the tenant can take.
    pub max: usize,
}

/// A resource of the node, divided among its tenants. Cheap to clone.
#[derive(Clone)]
pub struct Budget(Arc<Shares>);

struct Shares {
    by_tenant: RwLock<HashMap<Arc<str>, Share>>,
    total: Arc<Total>,
}

/// The state that all shares have in common.
pub(crate) struct Total {
    pub(crate) max: usize,
    /// The sum over all tenants of what they use, but at least the minimum and at most the maximum of
    /// each.
    pub(crate) committed: AtomicUsize,
    pub(crate) kind: Kind,
}

/// What may exceed the total.
pub(crate) enum Kind {
    /// Nothing: all amounts are taken, none is recorded. Has the sum of what is taken, also of what
    /// exceeds a maximum that was lowered.
    Strict(AtomicUsize),
    /// What holders record. The function is called when a share exceeds its bounds.
    Notifying(Box<dyn Fn() + Send + Sync>),
}

impl Total {
    /// Notifies the owner of the budget, if it is one whose shares may be exceeded.
    pub(crate) fn notify(&self) {
        if let Kind::Notifying(on_excess) = &self.kind {
            on_excess();
        }
    }
}

impl Budget {
    /// Divides `max` among these tenants, see [`Self::divide`]. Amounts are only taken, and all of them
    /// together never exceed `max`.
    pub fn new(max: usize, tenants: impl IntoIterator<Item = (Arc<str>, ShareLimits)>) -> Self {
        Self::of_kind(max, tenants, Kind::Strict(AtomicUsize::new(0)))
    }

    /// As [`Self::new`], but holders may record more than a share allows. `on_excess` is called each
    /// time. It must return at once.
    pub fn notifying(
        max: usize,
        tenants: impl IntoIterator<Item = (Arc<str>, ShareLimits)>,
        on_excess: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self::of_kind(max, tenants, Kind::Notifying(Box::new(on_excess)))
    }

    fn of_kind(
        max: usize,
        tenants: impl IntoIterator<Item = (Arc<str>, ShareLimits)>,
        kind: Kind,
    ) -> Self {
        let total = Arc::new(Total { max, committed: AtomicUsize::new(0), kind });
        let budget = Self(Arc::new(Shares { by_tenant: RwLock::default(), total }));
        budget.divide(tenants);
        budget
    }

    /// A budget without bounds, in which everything is counted.
    pub fn unlimited() -> Self {
        Self::notifying(usize::MAX, [], || {})
    }

    /// Divides the budget among these tenants, also while amounts are taken and released. A minimum
    /// above the maximum counts as the maximum. Minima whose sum exceeds the total are reduced in
    /// proportion. A tenant that was named before and is not among these keeps its maximum, and has no
    /// minimum.
    ///
    /// A tenant above its new maximum keeps what it has, and can take nothing until it is below. A
    /// minimum that other tenants use at that moment becomes free as they release it: those that are
    /// above their own minimum can take nothing meanwhile.
    pub fn divide(&self, tenants: impl IntoIterator<Item = (Arc<str>, ShareLimits)>) {
        let limits = limits_within(self.max(), tenants);
        let mut by_tenant = self.0.by_tenant.write().unwrap_or_else(PoisonError::into_inner);
        // Minima fall before others rise: their sum exceeds the total at no time.
        for share in by_tenant.values() {
            let former = share.limits();
            let min = limits.get(share.tenant()).map_or(0, |new| new.min.min(former.min));
            share.limit(ShareLimits { min, ..former });
        }
        for (tenant, limits) in limits {
            let new = || self.unnamed_share(&tenant);
            by_tenant.entry(Arc::clone(&tenant)).or_insert_with(new).limit(limits);
        }
        let is_exceeded = by_tenant.values().any(Share::is_exceeded);
        drop(by_tenant);
        if is_exceeded {
            self.0.total.notify();
        }
    }

    /// The share of a tenant; `None` for one that was not named.
    pub fn share(&self, tenant: &str) -> Option<Share> {
        self.by_tenant().get(tenant).cloned()
    }

    /// A new share of a tenant that was not named. It has no minimum and no maximum: what is taken from
    /// it counts in the total only.
    pub fn unnamed_share(&self, tenant: &str) -> Share {
        Share::new(tenant.into(), &self.0.total)
    }

    /// Names a tenant, whose share was made by [`Self::unnamed_share`]. It gets its bounds with
    /// [`Self::divide`]. A tenant that was named already keeps its share. Returns whether the tenant is
    /// new.
    pub fn name(&self, share: Share) -> bool {
        let mut by_tenant = self.0.by_tenant.write().unwrap_or_else(PoisonError::into_inner);
        match by_tenant.entry(Arc::clone(share.tenant())) {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                vacant.insert(share);
                true
            }
        }
    }

    /// Forgets a tenant, whose minimum becomes free. What it still holds counts in the total.
    pub fn remove(&self, tenant: &str) -> Option<Share> {
        let mut by_tenant = self.0.by_tenant.write().unwrap_or_else(PoisonError::into_inner);
        let share = by_tenant.remove(tenant)?;
        share.limit(ShareLimits { min: 0, ..share.limits() });
        Some(share)
    }

    /// The shares of the named tenants, in no order.
    pub fn shares(&self) -> Vec<Share> {
        self.by_tenant().values().cloned().collect()
    }

    fn by_tenant(&self) -> RwLockReadGuard<'_, HashMap<Arc<str>, Share>> {
        // Each change is one insertion or removal, so the table is right in any case.
        self.0.by_tenant.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The total.
    pub fn max(&self) -> usize {
        self.0.total.max
    }

    /// The amount that the named tenants use.
    pub fn used(&self) -> usize {
        self.by_tenant().values().map(Share::used).sum()
    }

    /// What tenants use, or cannot be taken by others.
    pub fn committed(&self) -> usize {
        self.0.total.committed.load(Ordering::Relaxed)
    }

    /// The shares that exceed their bounds, the one with the largest excess first; of equal ones the one
    /// that is furthest above its minimum.
    pub fn exceeded(&self) -> Vec<Share> {
        let shares = self.shares().into_iter();
        let above_min = |share: &Share| share.used().saturating_sub(share.min());
        // The order is that of one moment, so the amounts are read once.
        let amounts = shares.map(|share| (share.excess(), above_min(&share), share));
        let mut exceeded: Vec<_> = amounts.filter(|(excess, ..)| *excess > 0).collect();
        exceeded.sort_by_key(|(excess, above_min, _)| Reverse((*excess, *above_min)));
        exceeded.into_iter().map(|(.., share)| share).collect()
    }
}

/// The bounds of these tenants, which divide `max`. A minimum is at most the tenant's maximum, and all
/// minima together are at most `max`: larger ones are reduced in proportion.
fn limits_within(
    max: usize,
    tenants: impl IntoIterator<Item = (Arc<str>, ShareLimits)>,
) -> HashMap<Arc<str>, ShareLimits> {
    let bounded = tenants.into_iter().map(|(name, limits)| {
        let most = limits.max.min(max);
        (name, ShareLimits { min: limits.min.min(most), max: most })
    });
    let mut tenants: HashMap<_, _> = bounded.collect();
    let sum: u128 = tenants.values().map(|limits| limits.min as u128).sum();
    if sum > max as u128 {
        for limits in tenants.values_mut() {
            let reduced = limits.min as u128 * max as u128 / sum;
            limits.min = usize::try_from(reduced).unwrap_or(limits.min);
        }
    }
    tenants
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Budget({} of {})", self.committed(), self.max())
    }
}

impl ShareLimits {
    /// The bounds of one of `tenants` that divide `total`. The maximum is the one that was set, or
    /// else half of the total, or all of it for an only tenant. The minimum is `wanted`, but the
    /// minima of all tenants together are at most half of the total.
    pub fn of_one(total: usize, tenants: usize, wanted: usize, set: Option<usize>) -> Self {
        let default = if tenants <= 1 { total } else { total.div_ceil(2) };
        let max = set.unwrap_or(default).min(total);
        let min = wanted.min(total / 2 / tenants.max(1)).min(max);
        Self { min, max }
    }
}

#[cfg(test)]
mod tests;
