//! The bytes that sleeping sessions keep in the store. Each session stays charged to its tenant until its
//! record expires there, or until this node restores it.
//!
//! This node does not learn that another node has restored or ended the session: the session is then
//! charged here until its record would have expired. A restart of the node forgets all of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use budget::Held;
use conversation::Millis;
use protocol::SessionId;

/// What the sessions that fell asleep at this node keep in the store.
#[derive(Debug, Default)]
pub(crate) struct SleepingBytes(Mutex<Sleepers>);

#[derive(Debug, Default)]
struct Sleepers {
    by_session: HashMap<SessionId, (Millis, Held)>,
    by_expiry: BTreeSet<(Millis, SessionId)>,
}

impl SleepingBytes {
    /// Keeps the charge of a session that falls asleep. Its record expires at this time.
    pub(crate) fn keep(&self, session: SessionId, stored: Held, expires: Millis) {
        let mut sleepers = self.sleepers();
        sleepers.forget(&session);
        sleepers.by_expiry.insert((expires, session.clone()));
        sleepers.by_session.insert(session, (expires, stored));
    }

    /// A session was restored at this node, and charges what it keeps itself.
    pub(crate) fn forget(&self, session: &SessionId) {
        self.sleepers().forget(session);
    }

    /// Drops the charges of the sessions whose records have expired.
    pub(crate) fn drop_expired(&self, now: Millis) {
        let mut sleepers = self.sleepers();
        while sleepers.by_expiry.first().is_some_and(|(expires, _)| *expires <= now) {
            if let Some((_, session)) = sleepers.by_expiry.pop_first() {
                sleepers.by_session.remove(&session);
            }
        }
    }

    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        // A panic can leave an entry in one of the tables only, which changes no other entry.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sleepers {
    fn forget(&mut self, session: &SessionId) {
        if let Some((expires, _)) = self.by_session.remove(session) {
            self.by_expiry.remove(&(expires, session.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use budget::{Budget, Share};

    use super::*;

    fn session(number: u32) -> SessionId {
        SessionId::parse(&format!("session-{number}")).expect("a valid id")
    }

    fn held(share: &Share, bytes: usize) -> Held {
        let mut held = Held::nothing(share);
        held.set(bytes);
        held
    }

    #[test]
    fn a_charge_stays_until_the_record_expires_or_the_session_is_restored() {
        let share = Budget::unlimited().unnamed_share("acme");
        let sleeping = SleepingBytes::default();
        for (number, expires) in [(1, 100), (2, 50), (3, 200)] {
            sleeping.keep(session(number), held(&share, 1_000), Millis(expires));
        }
        // Asleep again, after another node had it: it is charged once.
        sleeping.keep(session(1), held(&share, 3_000), Millis(300));
        assert_eq!(share.used(), 5_000);
        sleeping.drop_expired(Millis(49));
        assert_eq!(share.used(), 5_000);
        sleeping.drop_expired(Millis(100));
        assert_eq!(share.used(), 4_000);
        sleeping.forget(&session(1));
        sleeping.forget(&session(9));
        assert_eq!(share.used(), 1_000);
        sleeping.drop_expired(Millis(200));
        assert_eq!(share.used(), 0);
        let sleepers = sleeping.sleepers();
        assert!(sleepers.by_session.is_empty() && sleepers.by_expiry.is_empty());
    }
}
