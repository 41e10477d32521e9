//! The way into one session from any thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use actix::Addr;
use actix::dev::SendError;
use conversation::{Event, Refusal, SinkId};
use protocol::SessionId;
use tenants::Principal;

use crate::reply_stream::Local;
use crate::session_actor::{SessionActor, SessionMessage};
use crate::sink::{Bounds, Queue, Sink};

/// One session's mailbox, who may come to it, and what its connections share.
pub(crate) struct SessionHandle {
    pub(crate) session: SessionId,
    pub(crate) tenant: Arc<str>,
    principal: Principal,
    mailbox: Addr<SessionActor>,
    sinks: AtomicU64,
    /// A [`HandleState`].
    state: AtomicU8,
    /// Some reader has left since the session last looked.
    left: AtomicBool,
    drain_sent: AtomicBool,
    hand_over_sent: AtomicBool,
    stop_sent: AtomicBool,
}

/// Whether a session takes what comes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleState {
    /// It does.
    Open,
    /// It is being released: soon it has no owner, or another node owns it.
    Leaving,
    /// It is over, and stays here until the store knows.
    Over,
}

impl SessionHandle {
    /// To a session that is open to this principal of its tenant.
    pub(crate) fn new(
        session: SessionId,
        tenant: Arc<str>,
        principal: Principal,
        mailbox: Addr<SessionActor>,
    ) -> Self {
        Self {
            session,
            tenant,
            principal,
            mailbox,
            sinks: AtomicU64::new(0),
            state: AtomicU8::new(HandleState::Open as u8),
            left: AtomicBool::new(false),
            drain_sent: AtomicBool::new(false),
            hand_over_sent: AtomicBool::new(false),
            stop_sent: AtomicBool::new(false),
        }
    }

    /// May this principal of a tenant come in?
    pub(crate) fn admits(&self, tenant: &str, principal: &Principal) -> bool {
        *self.tenant == *tenant && self.principal == *principal
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
        match self.mailbox.try_send(SessionMessage::Event { event, sink: Some(sink) }) {
            Ok(()) => Ok(Local::new(queue, self)),
            Err(SendError::Full(_)) => Err(Refusal::Busy),
            Err(SendError::Closed(_)) if self.state() == HandleState::Over => {
                Err(Refusal::UnknownSession)
            }
            Err(SendError::Closed(_)) => Err(Refusal::Moved),
        }
    }

    pub(crate) fn state(&self) -> HandleState {
        match self.state.load(Ordering::Acquire) {
            0 => HandleState::Open,
            1 => HandleState::Leaving,
            _ => HandleState::Over,
        }
    }

    /// From now on nothing is taken. To be told before the mailbox closes.
    pub(crate) fn close(&self, state: HandleState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Makes the session look around: something that it depends on has changed. Where the
    /// mailbox is full, what is in it makes it look.
    pub(crate) fn wake(&self) {
        let _ = self.mailbox.try_send(SessionMessage::Wake);
    }

    /// A reader went away. The flag is left before the wake-up, so where the mailbox is
    /// full, the actor finds the flag when it has emptied it.
    pub(crate) fn reader_left(&self) {
        self.left.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Has any reader left since this was last asked?
    pub(crate) fn has_any_left(&self) -> bool {
        self.left.load(Ordering::SeqCst) && self.left.swap(false, Ordering::SeqCst)
    }

    /// Leaves the flag without a wake-up: for the session itself.
    pub(crate) fn note_left(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    /// Tells the session once to end when it has no exchange. Where the mailbox is full,
    /// nothing happens: ask again.
    pub(crate) fn drain(&self) {
        self.send_once(&self.drain_sent, || SessionMessage::Drain);
    }

    /// Tells the session once to leave this node when it has no exchange, as `drain` does.
    pub(crate) fn hand_over(&self) {
        self.send_once(&self.drain_sent, || {
            SessionMessage::event(Event::HandOver { at_once: false })
        });
    }

    /// Tells the session once to leave this node now, as `drain` does.
    pub(crate) fn hand_over_at_once(&self) {
        self.send_once(&self.hand_over_sent, || {
            SessionMessage::event(Event::HandOver { at_once: true })
        });
    }

    /// Tells the session once to end now, as `drain` does.
    pub(crate) fn stop(&self) {
        self.send_once(&self.stop_sent, || SessionMessage::event(Event::Stopping));
    }

    fn send_once(&self, told: &AtomicBool, message: impl FnOnce() -> SessionMessage) {
        if told.load(Ordering::Relaxed) {
            return;
        }
        if !matches!(self.mailbox.try_send(message()), Err(SendError::Full(_))) {
            told.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionHandle")
    }
}
