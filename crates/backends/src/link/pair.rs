//! Two bounded queues between a session and whoever drives its server.
//!
//! A queue has room allocated only while something is in it: a node holds thousands of
//! links, and nearly all of them are idle.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use protocol::Message;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::{LinkEvent, LinkLimits, SendError};

/// The session has dropped its half; nobody hears what is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session is gone")]
pub struct Gone;

pub(super) fn pair(limits: LinkLimits) -> (Mouth, Ear, ServerEnd) {
    let shared = Arc::new(Shared {
        limits,
        to_server: Mutex::default(),
        to_session: Mutex::default(),
        room: LazyNotify::default(),
        unheard: LazyNotify::default(),
        voices: AtomicUsize::new(1),
    });
    let end = ServerEnd { voice: Voice(Arc::clone(&shared)) };
    (Mouth(Arc::clone(&shared)), Ear(shared), end)
}

struct Shared {
    limits: LinkLimits,
    to_server: Mutex<Queue<Message>>,
    to_session: Mutex<Queue<LinkEvent>>,
    /// Wakes voices that wait for room.
    room: LazyNotify,
    /// Tells that the session's ear is gone.
    unheard: LazyNotify,
    /// When the last voice is gone, nothing more can be said.
    voices: AtomicUsize,
}

/// Wakes whoever waits for something. Made with the first who does: nearly nobody does.
///
/// Who waits makes it before looking a last time, under a queue's lock, whether there is
/// anything to wait for; who notifies has changed that under the same lock. So either the
/// one sees the change, or the other is notified.
#[derive(Default)]
struct LazyNotify(OnceLock<Box<Notify>>);

impl LazyNotify {
    fn awaited(&self) -> Notified<'_> {
        self.0.get_or_init(Box::default).notified()
    }

    fn notify(&self) {
        if let Some(notify) = self.0.get() {
            notify.notify_waiters();
        }
    }
}

/// One direction.
struct Queue<T> {
    waiting: VecDeque<T>,
    bytes: usize,
    reader: Option<Waker>,
    /// Nothing more will be written.
    ended: bool,
    /// Nobody will read.
    unread: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let waiting = VecDeque::new();
        Self { waiting, bytes: 0, reader: None, ended: false, unread: false }
    }
}

impl<T: Weigh> Queue<T> {
    fn has_room(&self, more: usize, limits: &LinkLimits) -> bool {
        self.waiting.is_empty()
            || (self.waiting.len() < limits.messages_max
                && self.bytes.saturating_add(more) <= limits.bytes_max)
    }

    /// The caller wakes whom it gets, after the lock.
    #[must_use]
    fn push(&mut self, item: T) -> Option<Waker> {
        self.bytes += item.weight();
        self.waiting.push_back(item);
        self.reader.take()
    }

    fn pop(&mut self) -> Option<T> {
        let item = self.waiting.pop_front()?;
        self.bytes -= item.weight();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        Some(item)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(item) = self.pop() {
            return Poll::Ready(Some(item));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        match &mut self.reader {
            Some(reader) => reader.clone_from(context.waker()),
            reader => *reader = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

/// What an item counts against the bytes of a link.
trait Weigh {
    fn weight(&self) -> usize;
}

impl Weigh for Message {
    fn weight(&self) -> usize {
        self.raw().len()
    }
}

impl Weigh for LinkEvent {
    fn weight(&self) -> usize {
        match self {
            Self::Said { message, .. } => message.weight(),
            Self::Up | Self::Down { .. } => 0,
        }
    }
}

/// Nothing panics under these locks, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The session's way to speak.
pub(super) struct Mouth(Arc<Shared>);

impl Mouth {
    pub(super) fn send(&self, message: Message) -> Result<(), SendError> {
        let mut queue = lock(&self.0.to_server);
        if queue.unread {
            return Err(SendError::Down);
        }
        if !queue.has_room(message.weight(), &self.0.limits) {
            return Err(SendError::Full);
        }
        let reader = queue.push(message);
        drop(queue);
        reader.inspect(Waker::wake_by_ref);
        Ok(())
    }
}

impl Drop for Mouth {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.to_server);
        queue.ended = true;
        let reader = queue.reader.take();
        drop(queue);
        reader.inspect(Waker::wake_by_ref);
    }
}

/// The session's way to hear.
pub(crate) struct Ear(Arc<Shared>);

impl Ear {
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        let mut queue = lock(&self.0.to_session);
        let polled = queue.poll(context);
        drop(queue);
        if matches!(polled, Poll::Ready(Some(_))) {
            self.0.room.notify();
        }
        polled
    }

    /// What waits, without enrolling anyone for what comes later.
    pub(crate) fn pop(&mut self) -> Option<LinkEvent> {
        let event = lock(&self.0.to_session).pop()?;
        self.0.room.notify();
        Some(event)
    }

    /// The first of what waits and, at its end, `event`.
    pub(crate) fn behind_what_waits(&mut self, event: LinkEvent) -> LinkEvent {
        let mut queue = lock(&self.0.to_session);
        let Some(first) = queue.pop() else { return event };
        // The link's calls bound how many answers wait here beyond the bound.
        let reader = queue.push(event);
        drop(queue);
        drop(reader);
        self.0.room.notify();
        first
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.to_session);
        queue.unread = true;
        let unheard = std::mem::take(&mut queue.waiting);
        queue.bytes = 0;
        drop(queue);
        drop(unheard);
        self.0.room.notify();
        self.0.unheard.notify();
    }
}

/// The server's side of a link. When it and all its voices are dropped before `Down`
/// was said, the session is told `Down` all the same.
pub struct ServerEnd {
    voice: Voice,
}

impl ServerEnd {
    /// The next message of the session's; `None` when it has dropped its sender.
    pub async fn heard(&mut self) -> Option<Message> {
        std::future::poll_fn(|context| self.poll_heard(context)).await
    }

    /// As `heard`, for hand-written futures.
    pub fn poll_heard(&mut self, context: &mut Context<'_>) -> Poll<Option<Message>> {
        lock(&self.voice.0.to_server).poll(context)
    }

    /// Tells the session something; waits while there is no room.
    pub async fn say(&self, event: LinkEvent) -> Result<(), Gone> {
        self.voice.say(event).await
    }

    /// A handle to say things from elsewhere.
    pub fn voice(&self) -> Voice {
        self.voice.clone()
    }

    /// Returns when the session has dropped the half that listens.
    pub async fn closed(&self) {
        self.voice.closed().await;
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        let mut queue = lock(&self.voice.0.to_server);
        queue.unread = true;
        let unheard = std::mem::take(&mut queue.waiting);
        queue.bytes = 0;
        drop(queue);
        drop(unheard);
    }
}

/// Says things to the session, from any task.
pub struct Voice(Arc<Shared>);

impl Voice {
    /// Tells the session something; waits while there is no room. After `Down`,
    /// nothing more is heard.
    pub async fn say(&self, event: LinkEvent) -> Result<(), Gone> {
        let mut event = event;
        loop {
            event = match self.try_say(event)? {
                None => return Ok(()),
                Some(event) => event,
            };
            let mut room = pin!(self.0.room.awaited());
            room.as_mut().enable();
            // There may be room since the attempt above and before the enrolment.
            event = match self.try_say(event)? {
                None => return Ok(()),
                Some(event) => event,
            };
            room.await;
        }
    }

    /// As `say`, but gives the event back when there is no room.
    pub fn try_say(&self, event: LinkEvent) -> Result<Option<LinkEvent>, Gone> {
        let mut queue = lock(&self.0.to_session);
        if queue.unread || queue.ended {
            return Err(Gone);
        }
        let is_down = matches!(event, LinkEvent::Down { .. });
        if !is_down && !queue.has_room(event.weight(), &self.0.limits) {
            return Ok(Some(event));
        }
        let reader = queue.push(event);
        queue.ended = is_down;
        drop(queue);
        reader.inspect(Waker::wake_by_ref);
        if is_down {
            lock(&self.0.to_server).unread = true;
            // Whoever waits for room would wait for nothing.
            self.0.room.notify();
        }
        Ok(None)
    }

    /// Says that the server is gone. There is always room for that, once.
    pub fn down(&self, reason: impl Into<String>) {
        let _ = self.try_say(LinkEvent::Down { reason: reason.into() });
    }

    /// Is the session gone?
    pub fn is_closed(&self) -> bool {
        lock(&self.0.to_session).unread
    }

    /// Returns when the session has dropped the half that listens.
    pub async fn closed(&self) {
        let mut unheard = pin!(self.0.unheard.awaited());
        unheard.as_mut().enable();
        if !self.is_closed() {
            unheard.await;
        }
    }
}

impl Clone for Voice {
    fn clone(&self) -> Self {
        self.0.voices.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Voice {
    fn drop(&mut self) {
        if self.0.voices.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.down("the server went away");
        }
    }
}

#[cfg(test)]
#[path = "pair_tests.rs"]
mod tests;
