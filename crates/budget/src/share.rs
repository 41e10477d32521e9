//! The share of one tenant, and the amounts that are taken from it.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::growing::AllGrowing;
use crate::{Kind, ShareLimits, Total};

/// The share of one tenant. Cheap to clone.
#[derive(Clone)]
pub struct Share(Arc<Inner>);

struct Inner {
    tenant: Arc<str>,
    /// Read while an amount changes, so that the bounds are the same before and after that. Written
    /// only when the budget is divided anew.
    limits: RwLock<ShareLimits>,
    used: AtomicUsize,
    growing: AllGrowing,
    total: Arc<Total>,
}

/// The share is used up, or what is free of the total belongs to other tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted;

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tenant's share is used up")
    }
}

impl std::error::Error for Exhausted {}

impl Share {
    /// A share of which nothing is used, without a minimum and with all of the total as its maximum.
    pub(crate) fn new(tenant: Arc<str>, total: &Arc<Total>) -> Self {
        let limits = RwLock::new(ShareLimits { min: 0, max: total.max });
        let (used, growing) = (AtomicUsize::new(0), AllGrowing::default());
        Self(Arc::new(Inner { tenant, limits, used, growing, total: Arc::clone(total) }))
    }

    /// Gives the share other bounds, of which the maximum is at most the total.
    pub(crate) fn limit(&self, new: ShareLimits) {
        let mut limits = self.0.limits.write().unwrap_or_else(PoisonError::into_inner);
        // Nothing is taken or released under this lock.
        let used = self.used();
        let (before, after) = (limits.committed_by(used), new.committed_by(used));
        self.0.total.committed.fetch_add(after.saturating_sub(before), Ordering::Relaxed);
        self.0.total.committed.fetch_sub(before.saturating_sub(after), Ordering::Relaxed);
        *limits = new;
    }

    fn locked_limits(&self) -> RwLockReadGuard<'_, ShareLimits> {
        // No code panics under the lock, so the bounds are right in any case.
        self.0.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bounds at this moment.
    pub fn limits(&self) -> ShareLimits {
        *self.locked_limits()
    }

    /// The tenant's name.
    pub fn tenant(&self) -> &Arc<str> {
        &self.0.tenant
    }

    /// The amount that the tenant uses.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// The most that the tenant can take.
    pub fn max(&self) -> usize {
        self.limits().max
    }

    /// The amount that no other tenant can take.
    pub fn min(&self) -> usize {
        self.limits().min
    }

    /// Takes an amount, or refuses and takes nothing.
    pub fn take(&self, amount: usize) -> Result<Held, Exhausted> {
        let mut held = Held::nothing(self);
        held.try_set(amount)?;
        Ok(held)
    }

    /// Whether the tenant has to release something.
    pub fn is_exceeded(&self) -> bool {
        self.excess() > 0
    }

    /// How much the tenant has to release: what exceeds its maximum, or else its part of what
    /// exceeds the total.
    pub fn excess(&self) -> usize {
        let (used, limits) = (self.used(), self.limits());
        let committed = self.0.total.committed.load(Ordering::Relaxed);
        let over_total = committed.saturating_sub(self.0.total.max);
        let over_max = used.saturating_sub(limits.max);
        over_max.max(over_total.min(used.saturating_sub(limits.min)))
    }

    /// Whether the bounds would allow what is used if it were less by `others`.
    pub(crate) fn allows_without(&self, others: usize) -> bool {
        let (used, limits) = (self.used(), self.limits());
        let left = used.saturating_sub(others);
        let less = limits.committed_by(used) - limits.committed_by(left);
        let committed = self.0.total.committed.load(Ordering::Relaxed).saturating_sub(less);
        left <= limits.max && (left <= limits.min || committed <= self.0.total.max)
    }

    /// The amounts that grow.
    pub(crate) fn growing(&self) -> &AllGrowing {
        &self.0.growing
    }

    /// Counts an amount that a holder keeps by other means than a [`Held`]. The holder must call
    /// [`Self::release`] with the same sum of amounts.
    pub fn charge(&self, amount: usize) {
        if amount == 0 {
            return;
        }
        if let Kind::Strict(taken) = &self.0.total.kind {
            taken.fetch_add(amount, Ordering::Relaxed);
        }
        if self.add(amount).is_err() {
            self.0.total.notify();
        }
    }

    /// Gives an amount back that was taken with [`Self::charge`].
    pub fn release(&self, amount: usize) {
        if amount == 0 {
            return;
        }
        // First: what is taken exceeds what is committed at no time.
        if let Kind::Strict(taken) = &self.0.total.kind {
            taken.fetch_sub(amount, Ordering::Relaxed);
        }
        self.subtract(amount);
    }

    fn try_charge(&self, amount: usize) -> Result<(), Exhausted> {
        let taken = self.add(amount).and_then(|()| self.take_of_total(amount));
        taken.inspect_err(|_| self.subtract(amount))
    }

    /// Adds the amount to what all tenants have taken. Fails after the budget was divided anew, and where
    /// another thread takes and releases amounts of the same share at the same moment: otherwise what
    /// is taken is at most what is committed.
    fn take_of_total(&self, amount: usize) -> Result<(), Exhausted> {
        let Total { max, kind, .. } = &*self.0.total;
        let Kind::Strict(taken) = kind else { return Ok(()) };
        let more = |taken: usize| taken.checked_add(amount).filter(|sum| sum <= max);
        let taken = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(|_| ()).map_err(|_| Exhausted)
    }

    /// Adds an amount. The error says that the share exceeds its bounds then. Each addition sees
    /// another value of `used` before it, so the sum of the differences is exact.
    fn add(&self, amount: usize) -> Result<(), Exhausted> {
        let limits = self.locked_limits();
        let before = self.0.used.fetch_add(amount, Ordering::Relaxed);
        let used = before.saturating_add(amount);
        let more = limits.committed_by(used) - limits.committed_by(before);
        let before = self.0.total.committed.fetch_add(more, Ordering::Relaxed);
        let committed = before.saturating_add(more);
        let is_over_total = used > limits.min && committed > self.0.total.max;
        if used > limits.max || is_over_total { Err(Exhausted) } else { Ok(()) }
    }

    fn subtract(&self, amount: usize) {
        let limits = self.locked_limits();
        let before = self.0.used.fetch_sub(amount, Ordering::Relaxed);
        debug_assert!(before >= amount, "more was released than charged");
        let after = before.saturating_sub(amount);
        let freed = limits.committed_by(before) - limits.committed_by(after);
        self.0.total.committed.fetch_sub(freed, Ordering::Relaxed);
    }
}

impl ShareLimits {
    /// What a tenant takes of the total when it uses so much: at least its minimum, and at most its
    /// maximum. What it records above its maximum is not taken from the others.
    fn committed_by(self, used: usize) -> usize {
        used.min(self.max).max(self.min)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({}: {} of {})", self.tenant(), self.used(), self.max())
    }
}

/// An amount that is taken from a share. Dropping it gives the amount back.
#[derive(Debug)]
pub struct Held {
    share: Share,
    amount: usize,
}

impl Held {
    /// A holder of nothing yet.
    pub fn nothing(share: &Share) -> Self {
        Self { share: share.clone(), amount: 0 }
    }

    /// The amount that is held.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// The share that the amount is taken from.
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// Records that `amount` is held now, also if the share does not allow it.
    pub fn set(&mut self, amount: usize) {
        if amount > self.amount {
            self.share.charge(amount - self.amount);
        } else {
            self.share.release(self.amount - amount);
        }
        self.amount = amount;
    }

    /// As [`Self::set`], but changes nothing if the share does not allow it.
    pub fn try_set(&mut self, amount: usize) -> Result<(), Exhausted> {
        if amount > self.amount {
            self.share.try_charge(amount - self.amount)?;
        } else {
            self.share.release(self.amount - amount);
        }
        self.amount = amount;
        Ok(())
    }
}

impl Held {
    /// Takes `more` in addition, or refuses and takes nothing.
    pub fn try_grow(&mut self, more: usize) -> Result<(), Exhausted> {
        self.try_set(self.amount.checked_add(more).ok_or(Exhausted)?)
    }

    /// A holder of so much of it, or of all of it if it is less.
    pub fn split(&mut self, amount: usize) -> Self {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        Self { share: self.share.clone(), amount }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.share.release(self.amount);
    }
}
