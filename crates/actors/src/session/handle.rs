//! The handle of one session, for any thread.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use actix::Recipient;
use actix::dev::SendError;
use budget::Share;
use conversation::{Event, Refusal, SinkId};
use protocol::{Revision, SessionId, UpstreamTokens};
use tenants::Principal;
use tokio::sync::{oneshot, watch};

use super::SessionMessage;
use super::relief::Relief;
use crate::HandshakeSummary;
use crate::reply::{Bounds, ReplyQueue, Sink};
use crate::session_summary::Activity;

/// One session's mailbox, the principal that it belongs to, and what its connections share.
pub(crate) struct SessionHandle {
    pub(crate) session: SessionId,
    /// The tenant's share of the bytes that sessions keep.
    pub(crate) share: Share,
    principal: Principal,
    /// The last revocation of the principal that the session came after; 0: none.
    revoked_ms: u64,
    mailbox: Recipient<SessionMessage>,
    /// The tokens for upstream servers of the latest request that had some. Made for sessions that need
    /// them.
    tokens: OnceLock<watch::Sender<Option<UpstreamTokens>>>,
    /// Set once the handshake is known.
    handshake: OnceLock<HandshakeSummary>,
    sinks: AtomicU64,
    /// A [`HandleState`].
    state: AtomicU8,
    /// The latest [`StopRequest`] that was sent; 0 for none. It only rises.
    stop_request: AtomicU8,
    /// Whether a reader has left since the session last checked.
    has_reader_left: AtomicBool,
}

/// Whether a session accepts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleState {
    /// The session accepts requests.
    Open,
    /// The session is being released: soon it has no owner, or another node owns it.
    Leaving,
    /// The session has ended, and stays registered until the store has acknowledged that.
    Over,
}

/// The way in which a session is to stop; each is more urgent than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopRequest {
    /// End as soon as no request is in flight.
    Drain = 1,
    /// Be released as soon as no request is in flight.
    HandOver,
    /// Be released now: the requests in flight end with an error.
    HandOverNow,
    /// End now.
    Stop,
    /// End now, and cancel the requests in flight: the client was revoked.
    Revoke,
}

impl StopRequest {
    fn message(self) -> SessionMessage {
        match self {
            Self::Drain => SessionMessage::Drain,
            Self::HandOver => SessionMessage::event(Event::HandOver { at_once: false }),
            Self::HandOverNow => SessionMessage::event(Event::HandOver { at_once: true }),
            Self::Stop => SessionMessage::event(Event::Stopping),
            Self::Revoke => SessionMessage::event(Event::Revoked),
        }
    }
}

impl SessionHandle {
    /// Creates the handle of a session that belongs to this principal of the share's tenant.
    pub(crate) fn new(
        session: SessionId,
        share: Share,
        principal: Principal,
        revoked_ms: u64,
        mailbox: Recipient<SessionMessage>,
    ) -> Self {
        Self {
            session,
            share,
            principal,
            revoked_ms,
            mailbox,
            tokens: OnceLock::new(),
            handshake: OnceLock::new(),
            sinks: AtomicU64::new(0),
            state: AtomicU8::new(HandleState::Open as u8),
            stop_request: AtomicU8::new(0),
            has_reader_left: AtomicBool::new(false),
        }
    }

    /// Keeps the tokens for upstream servers, for messages of the session that are no request of a client.
    pub(crate) fn set_tokens(&self, tokens: &UpstreamTokens) {
        self.latest_tokens().send_if_modified(|kept| {
            let differ = kept.as_ref() != Some(tokens);
            if differ {
                *kept = Some(tokens.without_sources());
            }
            differ
        });
    }

    /// The tokens for upstream servers of the latest request that had some.
    pub(crate) fn tokens(&self) -> watch::Receiver<Option<UpstreamTokens>> {
        self.latest_tokens().subscribe()
    }

    /// The bytes of these tokens.
    pub(crate) fn token_bytes(&self) -> usize {
        let tokens = self.tokens.get();
        tokens
            .and_then(|kept| kept.borrow().as_ref().map(UpstreamTokens::bytes))
            .unwrap_or_default()
    }

    fn latest_tokens(&self) -> &watch::Sender<Option<UpstreamTokens>> {
        self.tokens.get_or_init(|| watch::channel(None).0)
    }

    /// The tenant that the session belongs to.
    pub(crate) fn tenant(&self) -> &Arc<str> {
        self.share.tenant()
    }

    /// What logs say of the handshake; `None` before it.
    pub(crate) fn handshake(&self) -> Option<&HandshakeSummary> {
        self.handshake.get()
    }

    /// Sets what logs say of the handshake, the first time.
    pub(crate) fn set_handshake(&self, revision: Revision, initialize: &[u8]) {
        if self.handshake.get().is_none()
            && let Some(summary) = HandshakeSummary::read(revision, initialize)
        {
            let _ = self.handshake.set(summary);
        }
    }

    /// The principal that the session belongs to.
    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The last revocation of the principal that the session came after; 0: none.
    pub(crate) fn revoked_ms(&self) -> u64 {
        self.revoked_ms
    }

    /// Whether this principal of a tenant may use the session.
    pub(crate) fn admits(&self, tenant: &str, principal: &Principal) -> bool {
        **self.tenant() == *tenant && self.principal == *principal
    }

    /// Creates a new connection of the session.
    pub(crate) fn new_sink(&self, bounds: Bounds, open: bool) -> (Sink, Arc<ReplyQueue>) {
        let id = SinkId(self.sinks.fetch_add(1, Ordering::Relaxed));
        Sink::new(id, bounds, open)
    }

    /// Sends an event whose replies arrive in the queue of a new connection. Does not wait: if the
    /// mailbox is full, the session is busy.
    pub(crate) fn send_request(
        &self,
        bounds: Bounds,
        event: impl FnOnce(SinkId) -> Event,
    ) -> Result<Arc<ReplyQueue>, Refusal> {
        let (mut sink, queue) = self.new_sink(bounds, false);
        let event = event(sink.id);
        if let Event::Posted { body, .. } = &event {
            sink.charge_request(body.bytes() + self.token_bytes(), &self.share);
        }
        match self.mailbox.try_send(SessionMessage::Event { event, sink: Some(sink) }) {
            Ok(()) => Ok(queue),
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

    /// Stops accepting requests. Call it before the mailbox closes.
    pub(crate) fn close(&self, state: HandleState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Makes the session check the state on which it depends. If the mailbox is full, the messages
    /// in it have the same effect.
    pub(crate) fn wake(&self) {
        let _ = self.mailbox.try_send(SessionMessage::Wake);
    }

    /// Ends the session, unless its client has completed the handshake meanwhile. Returns whether the
    /// session was told: not if its mailbox is full.
    pub(crate) fn evict(&self) -> bool {
        !matches!(self.mailbox.try_send(SessionMessage::Evict), Err(SendError::Full(_)))
    }

    /// Asks the session to release bytes. If its mailbox is full, the next round asks again.
    pub(crate) fn relieve(&self, relief: Relief) {
        let _ = self.mailbox.try_send(SessionMessage::Relieve(relief));
    }

    /// Asks the session what it does. If its mailbox is full, the sender is dropped.
    pub(crate) fn ask_activity(&self, sender: oneshot::Sender<Activity>) {
        let _ = self.mailbox.try_send(SessionMessage::Tell(sender));
    }

    /// Records that a reader has left, and wakes the session. The flag is set before the wake-up:
    /// if the mailbox is full, the actor finds the flag when it has emptied it.
    pub(crate) fn reader_left(&self) {
        self.has_reader_left.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether a reader has left since the last call.
    pub(crate) fn take_reader_left(&self) -> bool {
        let has_left = &self.has_reader_left;
        has_left.load(Ordering::SeqCst) && has_left.swap(false, Ordering::SeqCst)
    }

    /// Records that a reader has left without a wake-up, for the session itself.
    pub(crate) fn note_reader_left(&self) {
        self.has_reader_left.store(true, Ordering::SeqCst);
    }

    /// Sends a stop request once, and not after a more urgent one. If the mailbox is full, the
    /// request is not sent, and this returns `false`: call again.
    pub(crate) fn send_stop_request(&self, request: StopRequest) -> bool {
        if self.stop_request.load(Ordering::Relaxed) >= request as u8 {
            return true;
        }
        if matches!(self.mailbox.try_send(request.message()), Err(SendError::Full(_))) {
            return false;
        }
        self.stop_request.fetch_max(request as u8, Ordering::Relaxed);
        true
    }

    /// Takes a stop request back: the session stays, unless it is leaving already or its mailbox
    /// is full. Another stop request may follow.
    pub(crate) fn cancel_stop_request(&self) {
        if self.stop_request.swap(0, Ordering::Relaxed) != 0 {
            let _ = self.mailbox.try_send(SessionMessage::CancelStop);
        }
    }
}

impl fmt::Debug for SessionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionHandle")
    }
}
