//! The sessions whose clients have not completed the handshake.
//!
//! Such a session costs its client one request. Therefore a tenant has few of them: at the bound the
//! oldest one ends, so that clients that never complete the handshake take no slot of those that do.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::session::SessionHandle;

/// The sessions whose clients have not completed the handshake, by tenant, oldest first.
#[derive(Default)]
pub(crate) struct Unconfirmed(Mutex<HashMap<Arc<str>, VecDeque<Arc<SessionHandle>>>>);

impl Unconfirmed {
    /// Adds a session. Returns the tenant's oldest one if there are more than `most`.
    pub(crate) fn add(
        &self,
        handle: &Arc<SessionHandle>,
        most: usize,
    ) -> Option<Arc<SessionHandle>> {
        let mut tenants = self.lock();
        let sessions = tenants.entry(Arc::clone(handle.tenant())).or_default();
        sessions.push_back(Arc::clone(handle));
        if sessions.len() > most.max(1) { sessions.pop_front() } else { None }
    }

    /// Puts the oldest session back: it could not be told to end.
    pub(crate) fn put_back(&self, oldest: Arc<SessionHandle>) {
        self.lock().entry(Arc::clone(oldest.tenant())).or_default().push_front(oldest);
    }

    /// Removes a session, if it is here. The newest are looked at first: most clients complete the
    /// handshake at once.
    pub(crate) fn remove(&self, handle: &SessionHandle) {
        let mut tenants = self.lock();
        let Some(sessions) = tenants.get_mut(&**handle.tenant()) else { return };
        if let Some(index) = sessions.iter().rposition(|other| std::ptr::eq(&**other, handle)) {
            sessions.remove(index);
        }
        if sessions.is_empty() {
            tenants.remove(&**handle.tenant());
        }
    }

    /// No code panics under the lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, VecDeque<Arc<SessionHandle>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
