//! Two bounded queues between a session and the task or engine that drives its server.
//!
//! A queue allocates memory only while it is not empty: a node has thousands of links, and nearly
//! all of them are idle.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use budget::{Share, in_granules};
use protocol::Message;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::{LinkEvent, LinkLimits, SendError};

/// The session has dropped its half of the link, so no event can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the session is gone")]
pub struct Gone;

pub(super) fn pair(limits: LinkLimits) -> (SessionSender, EventReceiver, ServerEnd) {
    let shared = Arc::new(Shared {
        limits,
        to_server: Mutex::default(),
        to_session: Mutex::default(),
        room: LazyNotify::default(),
        receiver_gone: LazyNotify::default(),
        senders: AtomicUsize::new(1),
        is_ended: AtomicBool::new(false),
    });
    let end = ServerEnd { sender: EventSender(Arc::clone(&shared)) };
    (SessionSender(Arc::clone(&shared)), EventReceiver(shared), end)
}

struct Shared {
    limits: LinkLimits,
    to_server: Mutex<Queue<Message>>,
    to_session: Mutex<Queue<LinkEvent>>,
    /// Wakes senders that wait for room in `to_session`.
    room: LazyNotify,
    /// Wakes tasks once the session's receiver is dropped.
    receiver_gone: LazyNotify,
    /// The number of senders to the session. The link is down when the last one is dropped.
    senders: AtomicUsize,
    /// The session has closed the link for good.
    is_ended: AtomicBool,
}

/// Wakes the tasks that wait for a condition. It is allocated when the first task waits, since
/// nearly none does.
///
/// A task allocates it, then checks the condition once more under a queue's lock. The notifying
/// task changes the condition under the same lock. So the waiting task either sees the change or
/// is notified.
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

/// The queue of one direction of a link.
struct Queue<T> {
    waiting: VecDeque<T>,
    bytes: usize,
    /// The share that the bytes are charged to, if any.
    share: Option<Share>,
    reader: Option<Waker>,
    state: QueueState,
}

/// Whether a queue has both of its ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QueueState {
    /// Items are written and read.
    Open,
    /// No more items are written; queued ones are still read.
    Ended,
    /// No more items are accepted: the reader is gone, or needs none.
    Unread,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let waiting = VecDeque::new();
        Self { waiting, bytes: 0, share: None, reader: None, state: QueueState::Open }
    }
}

impl<T> Queue<T> {
    /// Charges the queued bytes, and those that are queued later, to a share.
    fn charge_to(&mut self, share: &Share) {
        let bytes = self.bytes;
        self.set_bytes(0);
        self.share = Some(share.clone());
        self.set_bytes(bytes);
    }

    fn set_bytes(&mut self, bytes: usize) {
        let before = in_granules(std::mem::replace(&mut self.bytes, bytes));
        let after = in_granules(bytes);
        if before != after
            && let Some(share) = &self.share
        {
            share.charge(after.saturating_sub(before));
            share.release(before.saturating_sub(after));
        }
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        self.set_bytes(0);
    }
}

impl<T: QueueWeight> Queue<T> {
    fn has_room(&self, more: usize, limits: &LinkLimits) -> bool {
        self.waiting.is_empty()
            || (self.waiting.len() < limits.messages_max
                && self.bytes.saturating_add(more) <= limits.bytes_max)
    }

    /// Appends an item. The caller wakes the returned waker after it has released the lock.
    #[must_use]
    fn push(&mut self, item: T) -> Option<Waker> {
        self.set_bytes(self.bytes + item.weight());
        self.waiting.push_back(item);
        self.reader.take()
    }

    fn pop(&mut self) -> Option<T> {
        let item = self.waiting.pop_front()?;
        self.set_bytes(self.bytes - item.weight());
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        Some(item)
    }

    /// Accepts no more items. Queued items and the end of the queue are still read.
    fn stop_accepting(&mut self) {
        if self.state == QueueState::Open {
            self.state = QueueState::Unread;
        }
    }

    /// Ends reading and returns the queued items. The caller drops them after it has released
    /// the lock.
    #[must_use]
    fn leave_unread(&mut self) -> VecDeque<T> {
        self.state = QueueState::Unread;
        self.set_bytes(0);
        std::mem::take(&mut self.waiting)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        if let Some(item) = self.pop() {
            return Poll::Ready(Some(item));
        }
        if self.state == QueueState::Ended {
            return Poll::Ready(None);
        }
        match &mut self.reader {
            Some(reader) => reader.clone_from(context.waker()),
            reader => *reader = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

/// The number of bytes that an item counts against the bound of a link.
trait QueueWeight {
    fn weight(&self) -> usize;
}

impl QueueWeight for Message {
    fn weight(&self) -> usize {
        self.raw().len()
    }
}

impl QueueWeight for LinkEvent {
    fn weight(&self) -> usize {
        match self {
            Self::Message { message, .. } => message.weight(),
            Self::Positioned { message, position, .. } => {
                message.as_ref().map_or(0, Message::weight) + position.bytes()
            }
            Self::Saved { state } => state.len(),
            Self::Returned { request } => request.raw().len(),
            Self::StateLost | Self::Up | Self::RoomWanted | Self::Retired | Self::Down { .. } => 0,
        }
    }
}

/// Locks also a poisoned mutex: no code panics while it holds one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The session's half of the link to its server: sends messages.
pub(super) struct SessionSender(Arc<Shared>);

impl SessionSender {
    pub(super) fn send(&self, message: Message) -> Result<(), SendError> {
        let mut queue = lock(&self.0.to_server);
        if queue.state != QueueState::Open {
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

impl SessionSender {
    pub(super) fn end(&self) {
        self.0.is_ended.store(true, Ordering::Release);
    }

    pub(super) fn charge_to(&self, share: &Share) {
        lock(&self.0.to_server).charge_to(share);
        lock(&self.0.to_session).charge_to(share);
    }
}

impl Drop for SessionSender {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.to_server);
        // Also if the server is down: its end must see that the session is gone.
        queue.state = QueueState::Ended;
        let reader = queue.reader.take();
        drop(queue);
        reader.inspect(Waker::wake_by_ref);
    }
}

/// The session's half of the link from its server: receives events.
pub struct EventReceiver(Arc<Shared>);

impl EventReceiver {
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<LinkEvent>> {
        let mut queue = lock(&self.0.to_session);
        let polled = queue.poll(context);
        drop(queue);
        if matches!(polled, Poll::Ready(Some(_))) {
            self.0.room.notify();
        }
        polled
    }

    /// Takes the first queued event. Registers no waker.
    pub(crate) fn pop(&mut self) -> Option<LinkEvent> {
        let event = lock(&self.0.to_session).pop()?;
        self.0.room.notify();
        Some(event)
    }

    /// Enqueues `event` after the queued events, and takes the first one.
    pub(crate) fn push_and_pop(&mut self, event: LinkEvent) -> LinkEvent {
        let mut queue = lock(&self.0.to_session);
        let Some(first) = queue.pop() else { return event };
        // Responses may exceed the bound of the queue. The number of calls bounds them.
        let reader = queue.push(event);
        drop(queue);
        drop(reader);
        self.0.room.notify();
        first
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.to_session);
        let unread = queue.leave_unread();
        drop(queue);
        drop(unread);
        self.0.room.notify();
        self.0.receiver_gone.notify();
    }
}

/// The server's side of a link. If it and all its senders are dropped before `Down` was sent,
/// the session receives `Down` nevertheless.
pub struct ServerEnd {
    sender: EventSender,
}

impl ServerEnd {
    /// Waits for the next message of the session; `None` once it has dropped its sender.
    pub async fn receive(&mut self) -> Option<Message> {
        std::future::poll_fn(|context| self.poll_receive(context)).await
    }

    /// Whether the session has closed the link for good. Meaningful once it has dropped its sender.
    pub fn is_ended(&self) -> bool {
        self.sender.0.is_ended.load(Ordering::Acquire)
    }

    /// Polls for the next message of the session. As [`Self::receive`].
    pub fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Option<Message>> {
        lock(&self.sender.0.to_server).poll(context)
    }

    /// Sends an event to the session; waits while the queue is full.
    pub async fn send(&self, event: LinkEvent) -> Result<(), Gone> {
        self.sender.send(event).await
    }

    /// As [`EventSender::share`].
    pub fn share(&self) -> Option<Share> {
        self.sender.share()
    }

    /// A sender for another task.
    pub fn sender(&self) -> EventSender {
        self.sender.clone()
    }

    /// Returns when the session has dropped its receiver.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        let mut queue = lock(&self.sender.0.to_server);
        let unread = queue.leave_unread();
        drop(queue);
        drop(unread);
    }
}

/// Sends events to the session, from any task.
pub struct EventSender(Arc<Shared>);

impl EventSender {
    /// The share of the session's tenant to which the link is charged, if it is.
    pub fn share(&self) -> Option<Share> {
        lock(&self.0.to_session).share.clone()
    }

    /// Sends an event to the session; waits while the queue is full. After `Down`, no further
    /// event can be sent.
    pub async fn send(&self, event: LinkEvent) -> Result<(), Gone> {
        let mut event = event;
        loop {
            event = match self.try_send(event)? {
                None => return Ok(()),
                Some(event) => event,
            };
            let mut room = pin!(self.0.room.awaited());
            room.as_mut().enable();
            // The queue may have been read between the attempt above and the registration.
            event = match self.try_send(event)? {
                None => return Ok(()),
                Some(event) => event,
            };
            room.await;
        }
    }

    /// Sends an event to the session without waiting. Returns the event if the queue is full.
    pub fn try_send(&self, event: LinkEvent) -> Result<Option<LinkEvent>, Gone> {
        let mut queue = lock(&self.0.to_session);
        if queue.state != QueueState::Open {
            return Err(Gone);
        }
        let is_down = matches!(event, LinkEvent::Down { .. });
        if !is_down && !queue.has_room(event.weight(), &self.0.limits) {
            return Ok(Some(event));
        }
        let reader = queue.push(event);
        if is_down {
            queue.state = QueueState::Ended;
        }
        drop(queue);
        reader.inspect(Waker::wake_by_ref);
        if is_down {
            lock(&self.0.to_server).stop_accepting();
            // Otherwise senders that wait for room would never wake up.
            self.0.room.notify();
        }
        Ok(None)
    }

    /// Sends [`LinkEvent::Down`], also if the queue is full.
    pub fn down(&self, reason: impl Into<String>) {
        let _ = self.try_send(LinkEvent::Down { reason: reason.into() });
    }

    /// Whether the session has dropped its receiver.
    pub fn is_closed(&self) -> bool {
        lock(&self.0.to_session).state == QueueState::Unread
    }

    /// Returns when the session has dropped its receiver.
    pub async fn closed(&self) {
        let mut receiver_gone = pin!(self.0.receiver_gone.awaited());
        receiver_gone.as_mut().enable();
        if !self.is_closed() {
            receiver_gone.await;
        }
    }
}

impl Clone for EventSender {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.down("the server has ended");
        }
    }
}

#[cfg(test)]
#[path = "pair_tests.rs"]
mod tests;
