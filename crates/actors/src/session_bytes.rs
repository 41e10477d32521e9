//! The budgets of the bytes that sessions keep in memory and in the store, divided among the tenants.

use std::sync::Arc;

use budget::{Budget, Held, Share, ShareLimits, in_granules};
use tokio::sync::Notify;

/// The budgets of the bytes that sessions keep. Cheap to clone.
///
/// In memory, these are logs, requests, waiting messages, subscriptions, and the replies that no client has read.
/// A tenant that exceeds its share has to release bytes, the one with the largest excess first: unread
/// reply queues are cut, then delivered events are dropped, then idle sessions leave memory. While the share is used up, new
/// sessions and requests of this tenant are refused. Other tenants are not affected.
///
/// In the store, these are records and logs, also of sessions that sleep there. A tenant has as large a
/// share of the store as of memory. While it is exceeded, a session that is idle drops the events that
/// have been delivered, or have had the time to be, and does not fall asleep before. At twice the share
/// new sessions are refused.
#[derive(Clone)]
pub struct SessionBytes {
    budget: Budget,
    in_store: Budget,
    excess: Arc<Notify>,
}

impl SessionBytes {
    /// Divides `max` bytes among these tenants.
    pub fn new(max: usize, tenants: impl IntoIterator<Item = (Arc<str>, ShareLimits)>) -> Self {
        let excess = Arc::new(Notify::new());
        let notify = Arc::clone(&excess);
        let tenants: Vec<_> = tenants.into_iter().collect();
        Self {
            in_store: Budget::notifying(max, tenants.iter().cloned(), || {}),
            budget: Budget::notifying(max, tenants, move || notify.notify_one()),
            excess,
        }
    }

    /// A budget without a bound.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX, [])
    }

    /// The bytes that the sessions of a tenant keep.
    pub fn used(&self, tenant: &str) -> usize {
        self.budget.share(tenant).map_or(0, |share| share.used())
    }

    /// The bytes that the sessions of a tenant keep in the store, as far as this node knows.
    pub fn used_in_store(&self, tenant: &str) -> usize {
        self.in_store.share(tenant).map_or(0, |share| share.used())
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

    /// A tenant's share of the store, also of a tenant that the settings do not have.
    pub(crate) fn share_of_store(&self, tenant: &str) -> Share {
        self.in_store.share(tenant).unwrap_or_else(|| self.in_store.unnamed_share(tenant))
    }

    /// Whether a tenant keeps twice as much in the store as it may. What exceeds its share could not be
    /// dropped, so only fewer sessions can keep less.
    pub(crate) fn is_store_full(&self, tenant: &str) -> bool {
        self.in_store.share(tenant).is_some_and(|share| share.used() / 2 > share.max())
    }

    /// Divides the bytes anew among these tenants. See [`Budget::divide`].
    pub fn divide(&self, tenants: impl IntoIterator<Item = (Arc<str>, ShareLimits)>) {
        let tenants: Vec<_> = tenants.into_iter().collect();
        self.in_store.divide(tenants.iter().cloned());
        self.budget.divide(tenants);
    }

    /// Names a tenant before the bytes are divided anew. See [`Budget::name`].
    pub fn name(&self, tenant: &str) -> bool {
        self.in_store.name(self.in_store.unnamed_share(tenant));
        self.budget.name(self.budget.unnamed_share(tenant))
    }

    /// Forgets a tenant that was removed from the settings. See [`Budget::remove`].
    pub fn remove(&self, tenant: &str) {
        self.in_store.remove(tenant);
        self.budget.remove(tenant);
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The budget of the bytes in the store.
    pub(crate) fn in_store(&self) -> &Budget {
        &self.in_store
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
