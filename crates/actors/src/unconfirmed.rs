//! The sessions whose clients have not completed the handshake.
//!
//! Such a session costs its client one request. Therefore a tenant has few of them: at the bound
//! one ends, so that clients that never complete the handshake take no slot of those that do. It is
//! the oldest one of the client with the most such sessions: a client that floods a tenant ends its
//! own sessions first. Clients are told apart by their address.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::session::SessionHandle;

/// The pause between two new sessions of a tenant that has as many unconfirmed sessions as it may.
/// Each of them ends another one. Without a pause a flood would use all time of the node's threads.
const PAUSE: Duration = Duration::from_millis(2);

/// The longest wait for such a session; a client that would wait longer is refused.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// The sessions whose clients have not completed the handshake, by tenant.
#[derive(Default)]
pub(crate) struct Unconfirmed(Mutex<HashMap<Arc<str>, Sessions<Arc<SessionHandle>>>>);

/// A session that was removed to make room.
pub(crate) struct Evicted(Entry<Arc<SessionHandle>>);

impl Evicted {
    pub(crate) fn handle(&self) -> &SessionHandle {
        &self.0.session
    }
}

impl Unconfirmed {
    /// Adds a session of a client. If there are more than `most`, one is removed and returned: the
    /// oldest one of the tenant's client with the most sessions here.
    pub(crate) fn add(
        &self,
        handle: &Arc<SessionHandle>,
        client: Option<IpAddr>,
        most: usize,
    ) -> Option<Evicted> {
        let mut tenants = self.lock();
        let sessions = tenants.entry(Arc::clone(handle.tenant())).or_default();
        sessions.push_back(Entry { session: Arc::clone(handle), client });
        if sessions.len() > most.max(1) {
            sessions.take_oldest_of_busiest().map(Evicted)
        } else {
            None
        }
    }

    /// How long the next session of a tenant has to wait before it is created; `None` if that is
    /// too long. `most` as in [`Self::add`].
    pub(crate) fn wait(&self, tenant: &str, most: usize, now: Instant) -> Option<Duration> {
        match self.lock().get_mut(tenant) {
            Some(sessions) if sessions.len() >= most.max(1) => sessions.take_turn(now),
            _ => Some(Duration::ZERO),
        }
    }

    /// Puts an evicted session back: it could not be told to end.
    pub(crate) fn put_back(&self, evicted: Evicted) {
        let Evicted(entry) = evicted;
        self.lock().entry(Arc::clone(entry.session.tenant())).or_default().push_front(entry);
    }

    /// Removes a session, if it is here.
    pub(crate) fn remove(&self, handle: &SessionHandle) {
        let mut tenants = self.lock();
        let Some(sessions) = tenants.get_mut(&**handle.tenant()) else { return };
        sessions.remove_if(|other| std::ptr::eq(&**other, handle));
        if sessions.len() == 0 {
            tenants.remove(&**handle.tenant());
        }
    }

    /// No code panics under the lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Sessions<Arc<SessionHandle>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sessions of one tenant. Bounded by the caller.
struct Sessions<S> {
    /// Oldest first.
    entries: VecDeque<Entry<S>>,
    /// How many of them each client has. All clients whose address is not known count as one.
    by_client: HashMap<Option<IpAddr>, usize>,
    /// When the next session may be created, if there are as many as there may be.
    next_turn: Option<Instant>,
}

struct Entry<S> {
    session: S,
    client: Option<IpAddr>,
}

impl<S> Default for Sessions<S> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), by_client: HashMap::new(), next_turn: None }
    }
}

impl<S> Sessions<S> {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn push_back(&mut self, entry: Entry<S>) {
        *self.by_client.entry(entry.client).or_default() += 1;
        self.entries.push_back(entry);
    }

    fn push_front(&mut self, entry: Entry<S>) {
        *self.by_client.entry(entry.client).or_default() += 1;
        self.entries.push_front(entry);
    }

    /// How long to wait for the next turn, which is taken; `None` if that is too long.
    fn take_turn(&mut self, now: Instant) -> Option<Duration> {
        let turn = self.next_turn.unwrap_or(now).max(now);
        let wait = turn.duration_since(now);
        (wait <= WAIT_MAX).then(|| {
            self.next_turn = Some(turn + PAUSE);
            wait
        })
    }

    /// Removes the oldest session of the client with the most sessions. Among clients with equally
    /// many it is the oldest session of all.
    fn take_oldest_of_busiest(&mut self) -> Option<Entry<S>> {
        let most = self.by_client.values().max()?;
        let is_busiest = |entry: &Entry<S>| self.by_client.get(&entry.client) == Some(most);
        let index = self.entries.iter().position(is_busiest)?;
        self.remove_at(index)
    }

    /// Removes the newest session that matches: most clients complete the handshake at once.
    fn remove_if(&mut self, is_it: impl Fn(&S) -> bool) {
        if let Some(index) = self.entries.iter().rposition(|entry| is_it(&entry.session)) {
            self.remove_at(index);
        }
    }

    fn remove_at(&mut self, index: usize) -> Option<Entry<S>> {
        let entry = self.entries.remove(index)?;
        if let Some(count) = self.by_client.get_mut(&entry.client) {
            *count -= 1;
            if *count == 0 {
                self.by_client.remove(&entry.client);
            }
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sessions of clients with these addresses, oldest first; 0 is a client without an address.
    fn sessions(clients: &[u8]) -> Sessions<usize> {
        let mut sessions = Sessions::default();
        for (session, client) in clients.iter().enumerate() {
            sessions.push_back(Entry { session, client: address(*client) });
        }
        sessions
    }

    fn address(client: u8) -> Option<IpAddr> {
        (client > 0).then(|| IpAddr::from([198, 51, 100, client]))
    }

    #[track_caller]
    fn check(clients: &[u8], evicted: &[usize]) {
        let mut sessions = sessions(clients);
        let first: Vec<_> = std::iter::from_fn(|| sessions.take_oldest_of_busiest())
            .map(|entry| entry.session)
            .take(evicted.len())
            .collect();
        assert_eq!(first, evicted, "{clients:?}");
    }

    #[test]
    fn the_oldest_session_of_the_busiest_client_is_the_first_to_end() {
        check(&[1, 2, 2, 3], &[1, 0, 2, 3]);
        check(&[1, 1, 2, 2, 2], &[2, 0, 3]);
    }

    #[test]
    fn clients_with_equally_many_sessions_lose_the_oldest_of_all() {
        check(&[3, 2, 1], &[0, 1, 2]);
    }

    #[test]
    fn clients_without_an_address_count_as_one() {
        check(&[1, 0, 0, 2], &[1, 0]);
        check(&[0, 0, 0], &[0, 1, 2]);
    }

    #[test]
    fn turns_are_a_pause_apart_and_a_long_wait_is_refused() {
        let mut sessions = sessions(&[1]);
        let now = Instant::now();
        assert_eq!(sessions.take_turn(now), Some(Duration::ZERO));
        assert_eq!(sessions.take_turn(now), Some(PAUSE));
        assert_eq!(sessions.take_turn(now + 10 * PAUSE), Some(Duration::ZERO));
        let turns = std::iter::from_fn(|| sessions.take_turn(now)).count();
        assert_eq!(turns, (WAIT_MAX.as_millis() / PAUSE.as_millis()) as usize + 1 - 11);
        assert_eq!(sessions.take_turn(now + PAUSE), Some(WAIT_MAX));
    }

    #[test]
    fn nothing_is_kept_of_clients_without_sessions() {
        let mut sessions = sessions(&[1, 2, 2]);
        sessions.remove_if(|session| *session == 0);
        assert_eq!(sessions.by_client.len(), 1);
        sessions.remove_if(|session| *session == 0);
        while sessions.take_oldest_of_busiest().is_some() {}
        assert_eq!((sessions.len(), sessions.by_client.len()), (0, 0));
    }
}
