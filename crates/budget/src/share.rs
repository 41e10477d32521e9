//! The share of one tenant, and the amounts that are taken from it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Total;

/// The share of one tenant. Cheap to clone.
#[derive(Clone)]
pub struct Share(Arc<Inner>);

struct Inner {
    tenant: Arc<str>,
    min: usize,
    max: usize,
    used: AtomicUsize,
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
    pub(crate) fn new(tenant: Arc<str>, min: usize, max: usize, total: &Arc<Total>) -> Self {
        let used = AtomicUsize::new(0);
        Self(Arc::new(Inner { tenant, min, max, used, total: Arc::clone(total) }))
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
        self.0.max.min(self.0.total.max)
    }

    /// The amount that no other tenant can take.
    pub fn min(&self) -> usize {
        self.0.min
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
        let used = self.used();
        let over_total = self.committed().saturating_sub(self.0.total.max);
        let over_max = used.saturating_sub(self.max());
        over_max.max(over_total.min(used.saturating_sub(self.0.min)))
    }

    /// Counts an amount that a holder keeps by other means than a [`Held`]. The holder must call
    /// [`Self::release`] with the same sum of amounts.
    pub fn charge(&self, amount: usize) {
        if amount == 0 {
            return;
        }
        let (used, committed) = self.add(amount);
        if used > self.max() || (used > self.0.min && committed > self.0.total.max) {
            (self.0.total.on_excess)();
        }
    }

    /// Gives an amount back that was taken with [`Self::charge`].
    pub fn release(&self, amount: usize) {
        if amount == 0 {
            return;
        }
        let before = self.0.used.fetch_sub(amount, Ordering::Relaxed);
        debug_assert!(before >= amount, "more was released than charged");
        let after = before.saturating_sub(amount);
        let freed = self.committed_by(before) - self.committed_by(after);
        self.0.total.committed.fetch_sub(freed, Ordering::Relaxed);
    }

    /// Adds an amount. Returns what is used and committed then. Each addition sees another value of
    /// `used` before it, so the sum of the differences is exact.
    fn add(&self, amount: usize) -> (usize, usize) {
        let before = self.0.used.fetch_add(amount, Ordering::Relaxed);
        let after = before.saturating_add(amount);
        let more = self.committed_by(after) - self.committed_by(before);
        let committed = self.0.total.committed.fetch_add(more, Ordering::Relaxed);
        (after, committed.saturating_add(more))
    }

    fn try_charge(&self, amount: usize) -> Result<(), Exhausted> {
        let (used, committed) = self.add(amount);
        if used > self.max() || (used > self.0.min && committed > self.0.total.max) {
            self.release(amount);
            return Err(Exhausted);
        }
        Ok(())
    }

    /// What the tenant takes of the total when it uses so much: at least its minimum, and at most its
    /// maximum. What it records above its maximum is not taken from the others.
    fn committed_by(&self, used: usize) -> usize {
        used.clamp(self.0.min, self.max())
    }

    fn committed(&self) -> usize {
        self.0.total.committed.load(Ordering::Relaxed)
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
}

impl Drop for Held {
    fn drop(&mut self) {
        self.share.release(self.amount);
    }
}
