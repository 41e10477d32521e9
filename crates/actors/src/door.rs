//! The way into one session from any thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use actix::Addr;
use actix::dev::SendError;
use conversation::{Event, Refusal, SinkId};

use crate::inflow::Local;
use crate::session_actor::{Mail, SessionActor};
use crate::sink::{Bounds, Queue, Sink};

/// One session's mailbox, and what its connections share.
pub(crate) struct Door {
    mailbox: Addr<SessionActor>,
    sinks: AtomicU64,
    /// Some reader has left since the session last looked.
    left: AtomicBool,
    told_to_drain: AtomicBool,
    told_to_stop: AtomicBool,
}

impl Door {
    pub(crate) fn new(mailbox: Addr<SessionActor>) -> Self {
        Self {
            mailbox,
            sinks: AtomicU64::new(0),
            left: AtomicBool::new(false),
            told_to_drain: AtomicBool::new(false),
            told_to_stop: AtomicBool::new(false),
        }
    }

    /// A new connection of the session's.
    pub(crate) fn sink(&self, bounds: Bounds, open: bool) -> (Sink, Arc<Queue>) {
        let id = SinkId(self.sinks.fetch_add(1, Ordering::Relaxed));
        Sink::new(id, bounds, open)
    }

    /// Brings an event that a new connection waits for. Does not wait: where too much
    /// waits already, the session is busy.
    pub(crate) fn enter(
        self: Arc<Self>,
        bounds: Bounds,
        event: impl FnOnce(SinkId) -> Event,
    ) -> Result<Local, Refusal> {
        let (sink, queue) = self.sink(bounds, false);
        let event = event(sink.id);
        match self.mailbox.try_send(Mail::Happened { event, sink: Some(sink) }) {
            Ok(()) => Ok(Local::new(queue, self)),
            Err(SendError::Full(_)) => Err(Refusal::Busy),
            Err(SendError::Closed(_)) => Err(Refusal::UnknownSession),
        }
    }

    /// A reader went away. The note is left before the knock, so where the mailbox is
    /// full, whoever empties it finds the note.
    pub(crate) fn reader_left(&self) {
        self.left.store(true, Ordering::SeqCst);
        let _ = self.mailbox.try_send(Mail::Knock);
    }

    /// Has any reader left since this was last asked?
    pub(crate) fn has_any_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) && self.left.swap(false, Ordering::SeqCst)
    }

    /// Leaves the note without a knock: for the session itself.
    pub(crate) fn note_left(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    /// Tells the session once to end when it has no exchange. Where the mailbox is full,
    /// nothing happens: ask again.
    pub(crate) fn drain(&self) {
        self.tell_once(&self.told_to_drain, Mail::Drain);
    }

    /// Tells the session once to end now, as `drain` does.
    pub(crate) fn stop(&self) {
        self.tell_once(&self.told_to_stop, Mail::Happened { event: Event::Stopping, sink: None });
    }

    fn tell_once(&self, told: &AtomicBool, mail: Mail) {
        if told.load(Ordering::Relaxed) {
            return;
        }
        if !matches!(self.mailbox.try_send(mail), Err(SendError::Full(_))) {
            told.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Door")
    }
}
