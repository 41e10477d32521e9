//! The machine of a session, at the actor or on a thread for long messages.

use std::ops::{Deref, DerefMut};

use conversation::Session;

/// The machine of a session. While another thread steps it, the actor handles nothing, so nothing reads
/// it then.
///
/// Boxed separately from the actor so that both allocations fit their allocator size class.
pub(super) struct Machine(Option<Box<Session>>);

impl Machine {
    pub(super) fn new(session: Session) -> Self {
        Self(Some(Box::new(session)))
    }

    /// Takes the machine for another thread. The actor waits for it, and puts it back.
    pub(super) fn take(&mut self) -> Option<Box<Session>> {
        self.0.take()
    }

    pub(super) fn put_back(&mut self, session: Box<Session>) {
        self.0 = Some(session);
    }
}

impl Deref for Machine {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.0.as_deref().expect("the actor waits while another thread steps its machine")
    }
}

impl DerefMut for Machine {
    fn deref_mut(&mut self) -> &mut Session {
        self.0.as_deref_mut().expect("the actor waits while another thread steps its machine")
    }
}
