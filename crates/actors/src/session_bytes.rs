//! The budget of the bytes that sessions keep in memory, divided among the tenants.

use std::sync::Arc;

use budget::{Budget, Held, Share, ShareLimits, in_granules};
use tokio::sync::Notify;

/// The budget of the bytes that sessions keep: their logs, requests, waiting messages, subscriptions,
/// and the replies that no client has read. Cheap to clone.
///
/// A tenant that exceeds its share has to release bytes, the one with the largest excess first: unread
/// reply queues are cut, then delivered events are dropped, then idle sessions leave memory. While the share is used up, new
/// sessions and requests of this tenant are refused. Other tenants are not affected.
#[derive(Clone)]
pub struct SessionBytes {
    budget: Budget,
    excess: Arc<Notify>,
}

impl SessionBytes {
    /// Divides `max` bytes among these tenants.
    pub fn new(max: usize, tenants: impl IntoIterator<Item = (Arc<str>, ShareLimits)>) -> Self {
        let excess = Arc::new(Notify::new());
        let notify = Arc::clone(&excess);
        Self { budget: Budget::notifying(max, tenants, move || notify.notify_one()), excess }
    }

    /// A budget without a bound.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX, [])
    }

    /// The bytes that the sessions of a tenant keep.
    pub fn used(&self, tenant: &str) -> usize {
        self.budget.share(tenant).map_or(0, |share| share.used())
    }

    /// The share of a tenant; `None` for one that the settings do not have.
    pub fn share(&self, tenant: &str) -> Option<Share> {
        self.budget.share(tenant)
    }

    /// The share of a tenant, also of one that the settings do not have: a take-over can bring sessions of
    /// such a tenant. It counts in the total only.
    pub(crate) fn share_of_session(&self, tenant: &str) -> Share {
        self.share(tenant).unwrap_or_else(|| self.budget.unnamed_share(tenant))
    }

    /// Divides the bytes anew among these tenants. See [`Budget::divide`].
    pub fn divide(&self, tenants: impl IntoIterator<Item = (Arc<str>, ShareLimits)>) {
        self.budget.divide(tenants);
    }

    /// Names a tenant before the bytes are divided anew. See [`Budget::name`].
    pub fn name(&self, tenant: &str) -> bool {
        self.budget.name(self.budget.unnamed_share(tenant))
    }

    /// Forgets a tenant that was removed from the settings. See [`Budget::remove`].
    pub fn remove(&self, tenant: &str) {
        self.budget.remove(tenant);
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Returns when a share was exceeded since the last call.
    pub(crate) async fn exceeded(&self) {
        self.excess.notified().await;
    }
}

/// Charges bytes to a share until the returned value is dropped. `None` for bytes that are too few
/// to count.
pub(crate) fn charge(bytes: usize, share: &Share) -> Option<Held> {
    let bytes = in_granules(bytes);
    (bytes > 0).then(|| {
        let mut held = Held::nothing(share);
        held.set(bytes);
        held
    })
}
