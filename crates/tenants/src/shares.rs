//! Shares of something countable that all tenants of a node use: bytes, sessions, processes,
//! connections.
//!
//! Each tenant has a minimum that is reserved for it, and a maximum. What is not reserved for a
//! tenant is free for every tenant. A tenant therefore takes what is free, and never what is
//! reserved for another. This file waits for nothing and knows no clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The shares of all tenants. Cheap to clone; clones share the counts.
#[derive(Clone, Debug)]
pub struct Shares(Arc<Inner>);

/// Why a share was not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The tenant has its maximum. A tenant that [`Shares::new`] was not given has a maximum of 0.
    Tenant,
    /// The tenant's minimum is used, and so is everything that is not reserved for other tenants.
    Node,
}

#[derive(Debug)]
struct Inner {
    tenants: HashMap<Arc<str>, Bounds>,
    /// What is reserved for no tenant.
    unreserved: usize,
    used: Mutex<Used>,
}

/// The bounds of one tenant.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    index: usize,
    minimum: usize,
    maximum: usize,
}

impl Bounds {
    /// The part of `used` that is not taken from the tenant's minimum.
    fn above_minimum(self, used: usize) -> usize {
        used.saturating_sub(self.minimum)
    }
}

#[derive(Debug)]
struct Used {
    /// By the tenants' indices.
    by_tenant: Vec<usize>,
    /// The sum of what the tenants use above their minima.
    unreserved: usize,
}

impl Shares {
    /// Shares of `total`. `minimum` is reserved for each tenant, but never more than half of what
    /// each would have if all had the same. A tenant without a maximum of its own may have half of
    /// `total`, or all of it if it is the only tenant.
    pub fn new(
        total: usize,
        minimum: usize,
        tenants: impl IntoIterator<Item = (Arc<str>, Option<usize>)>,
    ) -> Self {
        let mut maxima: Vec<_> = tenants.into_iter().collect();
        maxima.sort();
        maxima.dedup_by(|one, other| one.0 == other.0);
        let count = maxima.len();
        let default = if count == 1 { total } else { total.div_ceil(2) };
        let minimum = minimum.min(total / (2 * count.max(1)));
        let bounds = |(index, (name, written)): (usize, (Arc<str>, Option<usize>))| {
            let maximum = written.unwrap_or(default).min(total);
            (name, Bounds { index, minimum: minimum.min(maximum), maximum })
        };
        let tenants: HashMap<_, _> = maxima.into_iter().enumerate().map(bounds).collect();
        let reserved: usize = tenants.values().map(|bounds| bounds.minimum).sum();
        Self(Arc::new(Inner {
            tenants,
            unreserved: total - reserved,
            used: Mutex::new(Used { by_tenant: vec![0; count], unreserved: 0 }),
        }))
    }

    /// Takes `count` for a tenant, until the share is dropped.
    pub fn take(&self, tenant: &str, count: usize) -> Result<Share, Full> {
        let mut share = self.nothing(tenant).ok_or(Full::Tenant)?;
        share.grow(count)?;
        Ok(share)
    }

    /// An empty share of a tenant, which can grow; `None` for an unknown tenant.
    pub fn nothing(&self, tenant: &str) -> Option<Share> {
        let bounds = *self.0.tenants.get(tenant)?;
        Some(Share { shares: self.clone(), bounds, count: 0 })
    }

    /// What a tenant uses now.
    pub fn used(&self, tenant: &str) -> usize {
        self.0.tenants.get(tenant).map_or(0, |bounds| self.used_by_all().by_tenant[bounds.index])
    }

    /// What is reserved for a tenant.
    pub fn minimum(&self, tenant: &str) -> usize {
        self.0.tenants.get(tenant).map_or(0, |bounds| bounds.minimum)
    }

    /// What a tenant may have at most.
    pub fn maximum(&self, tenant: &str) -> usize {
        self.0.tenants.get(tenant).map_or(0, |bounds| bounds.maximum)
    }

    fn used_by_all(&self) -> std::sync::MutexGuard<'_, Used> {
        // The counts are changed without a panic in between, so they are right in any case.
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `more` for a tenant, or changes nothing.
    fn add(&self, bounds: Bounds, more: usize) -> Result<(), Full> {
        let mut used = self.used_by_all();
        let before = used.by_tenant[bounds.index];
        let after = before.checked_add(more).filter(|after| *after <= bounds.maximum);
        let after = after.ok_or(Full::Tenant)?;
        let unreserved =
            used.unreserved + bounds.above_minimum(after) - bounds.above_minimum(before);
        if unreserved > self.0.unreserved {
            return Err(Full::Node);
        }
        used.by_tenant[bounds.index] = after;
        used.unreserved = unreserved;
        Ok(())
    }

    fn release(&self, bounds: Bounds, count: usize) {
        let mut used = self.used_by_all();
        let before = used.by_tenant[bounds.index];
        let after = before - count;
        used.by_tenant[bounds.index] = after;
        used.unreserved -= bounds.above_minimum(before) - bounds.above_minimum(after);
    }
}

/// What one user of a tenant's share holds. Dropping it gives the share back.
#[derive(Debug)]
pub struct Share {
    shares: Shares,
    bounds: Bounds,
    count: usize,
}

impl Share {
    /// Takes `more` in addition. If there is not so much, the share stays as it was.
    pub fn grow(&mut self, more: usize) -> Result<(), Full> {
        self.shares.add(self.bounds, more)?;
        self.count += more;
        Ok(())
    }

    /// How much this share holds.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.count > 0 {
            self.shares.release(self.bounds, self.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares<const N: usize>(
        total: usize,
        minimum: usize,
        maxima: [(&str, Option<usize>); N],
    ) -> Shares {
        Shares::new(total, minimum, maxima.map(|(name, maximum)| (name.into(), maximum)))
    }

    #[test]
    fn a_tenant_takes_what_is_free_and_never_the_minimum_of_another() {
        let shares = shares(100, 20, [("a", Some(100)), ("b", None)]);
        assert_eq!((shares.minimum("a"), shares.minimum("b")), (20, 20));
        let most = shares.take("a", 80).unwrap();
        assert_eq!(shares.take("a", 1).unwrap_err(), Full::Node);
        let least = shares.take("b", 20).unwrap();
        assert_eq!(shares.take("b", 1).unwrap_err(), Full::Node);
        drop(most);
        assert_eq!(shares.take("b", 31).unwrap_err(), Full::Tenant);
        let _more = shares.take("b", 30).unwrap();
        drop(least);
        assert_eq!(shares.used("b"), 30);
    }

    #[test]
    fn by_default_a_tenant_may_have_half_and_an_only_tenant_all() {
        let two = shares(100, 10, [("a", None), ("b", Some(70))]);
        assert_eq!((two.maximum("a"), two.maximum("b")), (50, 70));
        assert_eq!(shares(100, 10, [("a", None)]).maximum("a"), 100);
        assert_eq!(shares(100, 10, [("a", Some(1_000))]).maximum("a"), 100);
    }

    #[test]
    fn at_most_half_of_the_total_is_reserved() {
        let names: Vec<Arc<str>> = (0..40).map(|n| format!("t{n}").into()).collect();
        let shares = Shares::new(100, 50, names.iter().map(|name| (Arc::clone(name), None)));
        assert_eq!(shares.minimum("t0"), 1);
        // 60 are reserved for no tenant, but half is the maximum.
        let _half = shares.take("t0", 50).unwrap();
        for name in &names[1..] {
            std::mem::forget(shares.take(name, 1).unwrap());
        }
    }

    #[test]
    fn a_minimum_is_never_above_the_maximum() {
        let shares = shares(100, 40, [("a", Some(3)), ("b", Some(97))]);
        assert_eq!((shares.minimum("a"), shares.minimum("b")), (3, 25));
        let _all = shares.take("b", 97).unwrap();
        let _rest = shares.take("a", 3).unwrap();
        assert_eq!(shares.take("a", 1).unwrap_err(), Full::Tenant);
    }

    #[test]
    fn a_share_grows_or_stays_as_it_was() {
        let shares = shares(10, 1, [("a", Some(10)), ("b", None)]);
        let mut share = shares.take("a", 5).unwrap();
        assert_eq!(share.grow(5), Err(Full::Node));
        assert_eq!((share.count(), shares.used("a")), (5, 5));
        assert_eq!(share.grow(4), Ok(()));
        assert_eq!(share.grow(usize::MAX), Err(Full::Tenant));
        drop(share);
        assert_eq!(shares.used("a"), 0);
    }

    #[test]
    fn an_unknown_tenant_has_no_share() {
        let shares = shares(10, 1, [("a", None)]);
        assert_eq!(shares.take("b", 1).unwrap_err(), Full::Tenant);
        assert!(shares.nothing("b").is_none());
        assert_eq!((shares.used("b"), shares.minimum("b"), shares.maximum("b")), (0, 0, 0));
        let none = Shares::new(10, 1, []);
        assert_eq!(none.take("a", 1).unwrap_err(), Full::Tenant);
    }

    proptest! {
        /// Whatever tenants take and give back: the total holds, no tenant has more than its
        /// maximum, and each tenant can have its minimum at any time.
        #[test]
        fn every_tenant_can_have_its_minimum_whatever_the_others_do(
            total in 0_usize..2_000,
            minimum in 0_usize..300,
            maxima in prop::collection::vec(prop::option::of(0_usize..2_500), 1..6),
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..700, any::<bool>()), 0..80),
        ) {
            let names: Vec<Arc<str>> = (0..maxima.len()).map(|n| format!("t{n}").into()).collect();
            let shares = Shares::new(total, minimum, names.iter().cloned().zip(maxima.iter().copied()));
            let mut held: Vec<(Arc<str>, Share)> = Vec::new();
            for (which, count, gives_back) in steps {
                if gives_back && !held.is_empty() {
                    held.swap_remove(which.index(held.len()));
                } else {
                    let name = which.get(&names);
                    held.extend(shares.take(name, count).ok().map(|share| (Arc::clone(name), share)));
                }
                let of = |name: &Arc<str>| -> usize {
                    held.iter().filter(|(by, _)| by == name).map(|(_, share)| share.count()).sum()
                };
                prop_assert!(names.iter().map(of).sum::<usize>() <= total);
                for name in &names {
                    prop_assert_eq!(shares.used(name), of(name));
                    prop_assert!(of(name) <= shares.maximum(name));
                    let missing = shares.minimum(name).saturating_sub(of(name));
                    prop_assert!(shares.take(name, missing).is_ok(), "the minimum of {}", name);
                }
            }
            held.clear();
            prop_assert!(names.iter().all(|name| shares.used(name) == 0));
        }
    }
}
