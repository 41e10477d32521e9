//! The sessions that have a child of one backend, to ask them to leave it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{EventSender, LinkEvent};

/// The sessions with a child. Each child has a permit, so their number is bounded.
#[derive(Default)]
pub(super) struct InUse(Mutex<Sessions>);

#[derive(Default)]
struct Sessions {
    next: u64,
    all: Vec<(u64, EventSender)>,
}

/// A session that has a child; dropped when the session leaves it.
pub(super) struct Entry<'a> {
    of: &'a InUse,
    number: u64,
}

impl InUse {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, session: EventSender) -> Entry<'_> {
        let mut sessions = self.sessions();
        let number = sessions.next;
        sessions.next += 1;
        sessions.all.push((number, session));
        Entry { of: self, number }
    }

    pub(super) fn count(&self) -> usize {
        self.sessions().all.len()
    }

    /// Asks each session to close its link if its server has been idle for long enough. A session
    /// whose queue is full is not idle.
    pub(super) fn ask_for_room(&self) {
        self.send_to_all(&LinkEvent::RoomWanted);
    }

    /// Asks each session to close its link as soon as its server is idle. A session whose queue is full
    /// is not asked: it keeps its server until it is idle for as long as it may be.
    pub(super) fn ask_to_leave(&self) {
        self.send_to_all(&LinkEvent::Retired);
    }

    fn send_to_all(&self, event: &LinkEvent) {
        for (_, session) in &self.sessions().all {
            let _ = session.try_send(event.clone());
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.of.sessions().all.retain(|(number, _)| *number != self.number);
    }
}
