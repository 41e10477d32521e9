//! A bounded cache of the peers at which sessions were found.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::SessionId;
use store::Incarnation;

/// Maps a session to the peer at which it was found. An entry is used until a call to that peer
/// proves it wrong.
///
/// The cache has two halves. When the younger half is full it replaces the older one, and entries
/// of the older half that were not read since are dropped.
pub(crate) struct LocationCache {
    half: usize,
    halves: Mutex<Halves>,
}

#[derive(Default)]
struct Halves {
    younger: HashMap<SessionId, Incarnation>,
    older: HashMap<SessionId, Incarnation>,
}

impl LocationCache {
    /// Creates a cache of at most `max` sessions.
    pub(crate) fn new(max: usize) -> Self {
        Self { half: (max / 2).max(1), halves: Mutex::default() }
    }

    /// The peer at which the session was found.
    pub(crate) fn get(&self, session: &SessionId) -> Option<Incarnation> {
        let mut halves = self.halves();
        if let Some(owner) = halves.younger.get(session) {
            return Some(*owner);
        }
        let owner = halves.older.remove(session)?;
        halves.insert(session.clone(), owner, self.half);
        Some(owner)
    }

    /// Records the peer at which the session was found.
    pub(crate) fn insert(&self, session: &SessionId, owner: Incarnation) {
        self.halves().insert(session.clone(), owner, self.half);
    }

    /// Drops the entry of the session.
    pub(crate) fn forget(&self, session: &SessionId) {
        let mut halves = self.halves();
        halves.younger.remove(session);
        halves.older.remove(session);
    }

    fn halves(&self) -> MutexGuard<'_, Halves> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Halves {
    fn insert(&mut self, session: SessionId, owner: Incarnation, half: usize) {
        if self.younger.len() >= half {
            self.older = mem::take(&mut self.younger);
        }
        self.younger.insert(session, owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(n: usize) -> SessionId {
        SessionId::parse(&format!("session-{n}")).unwrap()
    }

    #[test]
    fn entries_that_are_read_are_kept_and_others_are_dropped_in_time() {
        let cache = LocationCache::new(8);
        cache.insert(&session(0), Incarnation(7));
        for n in 1..100 {
            cache.insert(&session(n), Incarnation(1));
            assert_eq!(cache.get(&session(0)), Some(Incarnation(7)), "after {n}");
            let halves = cache.halves();
            assert!(halves.younger.len() + halves.older.len() <= 8);
        }
        assert_eq!(cache.get(&session(50)), None);
    }
}
