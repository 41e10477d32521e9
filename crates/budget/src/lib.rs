//! Divides a resource of the node among its tenants: bytes, or things that are counted.
//!
//! A [`Budget`] has a total. Each tenant has a [`Share`] of it, with a minimum and a maximum. A
//! tenant takes what is free, and never the minimum of another tenant: what tenants do not use of
//! their minima counts as used. A holder keeps its amount in a [`Held`], which gives it back when
//! it is dropped.
//!
//! An amount is taken in one of two ways. [`Share::take`] asks first and refuses. [`Held::set`]
//! records what is held already, and may exceed the share; the owner of the budget is then
//! notified, and makes the tenant release something.
//!
//! The crate has no dependencies and no clock. Its only lock guards the names of the tenants.

mod granule;
mod share;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

pub use granule::{GRANULE_BYTES, in_granules};
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
    by_tenant: RwLock<HashMap<Arc<str>, Named>>,
    total: Arc<Total>,
}

/// The share of a tenant that was named.
struct Named {
    share: Share,
    /// Whether the tenant came with [`Budget::add`].
    is_added: bool,
}

/// The state that all shares have in common.
pub(crate) struct Total {
    pub(crate) max: usize,
    /// The sum over all tenants of what they use, but at least the minimum and at most the maximum of
    /// each.
    pub(crate) committed: AtomicUsize,
    /// Called when a share exceeds its bounds.
    pub(crate) on_excess: Box<dyn Fn() + Send + Sync>,
}

impl Budget {
    /// Divides `max` among these tenants. A minimum above the maximum counts as the maximum. Minima
    /// whose sum exceeds `max` are reduced in proportion.
    ///
    /// `on_excess` is called each time a holder records more than its share allows. It must return
    /// at once.
    pub fn new(
        max: usize,
        tenants: impl IntoIterator<Item = (Arc<str>, ShareLimits)>,
        on_excess: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let tenants: Vec<_> = tenants.into_iter().collect();
        let minima = |limits: &ShareLimits| limits.min.min(limits.max).min(max) as u128;
        let sum: u128 = tenants.iter().map(|(_, limits)| minima(limits)).sum();
        let min_of = |limits: &ShareLimits| {
            let min = minima(limits);
            let reduced = if sum > max as u128 { min * max as u128 / sum } else { min };
            usize::try_from(reduced).unwrap_or(max)
        };
        let committed = tenants.iter().map(|(_, limits)| min_of(limits)).sum();
        let committed = AtomicUsize::new(committed);
        let total = Arc::new(Total { max, committed, on_excess: Box::new(on_excess) });
        let share = |name: &Arc<str>, min, max| Share::new(Arc::clone(name), min, max, &total);
        let named = |(name, limits): &(Arc<str>, ShareLimits)| {
            let share = share(name, min_of(limits), limits.max);
            (Arc::clone(name), Named { share, is_added: false })
        };
        let by_tenant = tenants.iter().map(named).collect();
        Self(Arc::new(Shares { by_tenant: RwLock::new(by_tenant), total }))
    }

    /// A budget without bounds, in which everything is counted.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX, [], || {})
    }

    /// The share of a tenant; `None` for one that was not named.
    pub fn share(&self, tenant: &str) -> Option<Share> {
        self.by_tenant().get(tenant).map(|named| named.share.clone())
    }

    /// A new share of a tenant that was not named. It has no minimum and no maximum: what is taken from
    /// it counts in the total only.
    pub fn unnamed_share(&self, tenant: &str) -> Share {
        Share::new(tenant.into(), 0, self.0.total.max, &self.0.total)
    }

    /// Names another tenant, with a maximum and without a minimum: the minima were divided at the
    /// start. A tenant that was named already keeps its share. Returns whether the tenant is new.
    pub fn add(&self, tenant: &Arc<str>, max: usize) -> bool {
        let mut by_tenant = self.0.by_tenant.write().unwrap_or_else(PoisonError::into_inner);
        let entry = by_tenant.entry(Arc::clone(tenant));
        let is_new = matches!(entry, Entry::Vacant(_));
        entry.or_insert_with(|| Named {
            share: Share::new(Arc::clone(tenant), 0, max, &self.0.total),
            is_added: true,
        });
        is_new
    }

    /// Forgets a tenant that came with [`Self::add`]. What it still holds counts in the total. A tenant
    /// that was named at the start keeps its share and its minimum.
    pub fn remove(&self, tenant: &str) {
        let mut by_tenant = self.0.by_tenant.write().unwrap_or_else(PoisonError::into_inner);
        if by_tenant.get(tenant).is_some_and(|named| named.is_added) {
            by_tenant.remove(tenant);
        }
    }

    /// The shares of the named tenants, in no order.
    pub fn shares(&self) -> Vec<Share> {
        self.by_tenant().values().map(|named| named.share.clone()).collect()
    }

    fn by_tenant(&self) -> RwLockReadGuard<'_, HashMap<Arc<str>, Named>> {
        // Each change is one insertion or removal, so the table is right in any case.
        self.0.by_tenant.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The total.
    pub fn max(&self) -> usize {
        self.0.total.max
    }

    /// The amount that the named tenants use.
    pub fn used(&self) -> usize {
        self.by_tenant().values().map(|named| named.share.used()).sum()
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
