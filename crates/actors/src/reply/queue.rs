//! The bounded queue from a session to one connection of its client.
//!
//! The session never waits for a connection. A full queue is cut: the events in it are still sent,
//! then the stream breaks off, and the client resumes from the log. A replay fits into an empty
//! queue, so the client advances with each resume. Most queued payloads are shared with the log,
//! and an idle queue allocates no memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use budget::{Held, Share, in_granules};
use conversation::{Answer, Ending, EventId, Frame, Refusal, SinkId};

use crate::session_bytes::charge;
use crate::{ReplyEvent, metrics};

/// The most frames and bytes that may wait. Each connection keeps a copy, so the fields are small.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) frames_max: u32,
    pub(crate) bytes_max: u32,
}

/// The sending half. A sink that is dropped before it is finished notifies the reader that the
/// session has left; if the session had not taken it yet, the request was not started.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) id: SinkId,
    queue: Arc<ReplyQueue>,
    taken: bool,
    /// The bytes of the request, until the session takes the sink. Most requests have none that
    /// count.
    request_bytes: Option<Box<Held>>,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// The event was queued.
    Taken,
    /// The reader has left, or was cut because it fell too far behind.
    Cut,
}

impl Sink {
    /// Creates both halves. With `open` the reply is a stream from the start, without an event for
    /// its head.
    pub(crate) fn new(id: SinkId, bounds: Bounds, open: bool) -> (Self, Arc<ReplyQueue>) {
        let queue =
            Arc::new(ReplyQueue { bounds, state: Mutex::new(State { open, ..State::default() }) });
        metrics::SINKS_OPEN.inc();
        (Self { id, queue: Arc::clone(&queue), taken: false, request_bytes: None }, queue)
    }

    /// Marks the sink as taken by the session, which may start the request now. If the sink is
    /// dropped later, its reader gets [`ReplyEvent::Moved`] instead of the refusal of a request
    /// that was not started.
    pub(crate) fn take(&mut self) {
        self.taken = true;
        self.request_bytes = None;
    }

    /// Charges the bytes of the request to a share until the session takes the sink. The session
    /// then counts what it keeps of them.
    pub(crate) fn charge_request(&mut self, bytes: usize, share: &Share) {
        self.request_bytes = charge(bytes, share).map(Box::new);
    }

    /// Sends the whole answer.
    pub(crate) fn answer(self, answer: Answer) {
        self.queue.end_reply(Some(ReplyEvent::Answer(answer)));
    }

    /// Makes the reply a stream, which a client can resume at `at`.
    pub(crate) fn open(&self, welcome: bool, at: Option<EventId>) -> Wrote {
        self.queue.write(ReplyEvent::Open { welcome, at }, 0, None)
    }

    /// Writes one frame. Its bytes are charged to `share` until the reader takes it.
    pub(crate) fn write(&self, frame: Frame, share: &Share) -> Wrote {
        let size = size_of_frame(&frame);
        self.queue.write(ReplyEvent::Frame(frame), size, Some(share))
    }

    /// As [`ReplyQueue::cut_unread`].
    pub(crate) fn cut_unread(&self, from: usize, first_kept: u64, share: &Share) -> bool {
        self.queue.cut_unread(from, first_kept, share)
    }

    /// Ends the stream. Returns the queue if its reader has yet to read bytes that are charged.
    pub(crate) fn finish(self, ending: Ending) -> Option<Arc<ReplyQueue>> {
        self.queue.end_reply(match ending {
            Ending::Proper => None,
            Ending::Abort => Some(ReplyEvent::Abort),
            Ending::Moved => Some(ReplyEvent::Moved),
        });
        self.queue.is_charged().then(|| Arc::clone(&self.queue))
    }

    /// Cuts a stream, or refuses a request whose reply is no stream yet. A stream of a session that
    /// moved continues at the next owner.
    pub(crate) fn abandon(self, refusal: Refusal) {
        self.queue.abandon(refusal);
    }

    /// Notifies a reader that has received no event yet that the owner lost its lease, and how long
    /// the request waited for it.
    pub(crate) fn lose_lease(self, held_secs: u64) {
        self.queue.end_reply(Some(ReplyEvent::LeaseLost { held_secs }));
    }

    /// Whether the reply is a stream.
    pub(crate) fn is_open(&self) -> bool {
        self.queue.lock().open
    }

    /// Whether the reader has left.
    pub(crate) fn is_left(&self) -> bool {
        self.queue.lock().phase == Phase::Left
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        metrics::SINKS_OPEN.dec();
        if self.taken {
            self.queue.end_reply(Some(ReplyEvent::Moved));
        } else {
            self.queue.abandon(Refusal::Moved);
        }
    }
}

/// The state that both halves share.
#[derive(Debug)]
pub(crate) struct ReplyQueue {
    bounds: Bounds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest event, stored inline: most replies have only one.
    head: Option<ReplyEvent>,
    /// The events after it.
    rest: VecDeque<ReplyEvent>,
    bytes: usize,
    /// Whether the reply is a stream.
    open: bool,
    phase: Phase,
    reader: Option<Waker>,
}

/// The phase of a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Further events may be written.
    #[default]
    Writing,
    /// No further event is written.
    Finished,
    /// The reader has left.
    Left,
}

impl ReplyQueue {
    /// No code panics under the lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `share` is charged under the lock, so that a reader gives back only what was charged.
    fn write(&self, event: ReplyEvent, size: usize, share: Option<&Share>) -> Wrote {
        let mut state = self.lock();
        if state.phase != Phase::Writing {
            return Wrote::Cut;
        }
        state.open = true;
        let wrote = if state.has_room(size, self.bounds) {
            if let Some(share) = share {
                share.charge(in_granules(state.bytes + size) - in_granules(state.bytes));
            }
            state.bytes += size;
            state.push(event);
            Wrote::Taken
        } else {
            state.push(ReplyEvent::Abort);
            state.phase = Phase::Finished;
            Wrote::Cut
        };
        wake(state);
        if wrote == Wrote::Cut {
            metrics::SINKS_OVERFLOWED.inc();
        }
        wrote
    }

    fn end_reply(&self, last: Option<ReplyEvent>) {
        let mut state = self.lock();
        if state.phase != Phase::Writing {
            return;
        }
        if let Some(event) = last {
            state.push(event);
        }
        state.phase = Phase::Finished;
        wake(state);
    }

    fn abandon(&self, refusal: Refusal) {
        let mut state = self.lock();
        if state.phase != Phase::Writing {
            return;
        }
        let last = match refusal {
            refusal if !state.open => ReplyEvent::Answer(Answer::Refused(refusal)),
            Refusal::Moved => ReplyEvent::Moved,
            _ => ReplyEvent::Abort,
        };
        state.push(last);
        state.phase = Phase::Finished;
        wake(state);
    }

    /// Whether bytes of unread events are charged.
    pub(crate) fn is_charged(&self) -> bool {
        in_granules(self.lock().bytes) > 0
    }

    /// Cuts a stream that holds at least `from` unread bytes, all of which the client can request
    /// again: the log keeps the events from `first_kept` on. The unread events are dropped. Returns
    /// whether it was cut.
    pub(crate) fn cut_unread(&self, from: usize, first_kept: u64, share: &Share) -> bool {
        let mut state = self.lock();
        let is_full = state.phase != Phase::Left && state.bytes >= from.max(1);
        if !is_full || !state.is_logged(first_kept) {
            return false;
        }
        let unread = state.take_unread(share);
        state.push(ReplyEvent::Abort);
        state.phase = Phase::Finished;
        wake(state);
        metrics::SINKS_OVERFLOWED.inc();
        drop(unread);
        true
    }

    /// The reader's next event. What was charged for it is given back to `share`.
    pub(crate) fn poll_next(
        &self,
        context: &mut Context<'_>,
        share: &Share,
    ) -> Poll<Option<ReplyEvent>> {
        let mut state = self.lock();
        if let Some(event) = state.pop(share) {
            return Poll::Ready(Some(event));
        }
        if state.phase != Phase::Writing {
            return Poll::Ready(None);
        }
        match &mut state.reader {
            Some(reader) => reader.clone_from(context.waker()),
            reader => *reader = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Whether the reader has taken the last event.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.lock();
        state.phase != Phase::Writing && state.head.is_none()
    }

    /// Records that the reader has left. Returns whether the session is to be notified. What was
    /// charged for unread events is given back to `share`.
    pub(crate) fn leave(&self, share: &Share) -> bool {
        let mut state = self.lock();
        let former = std::mem::replace(&mut state.phase, Phase::Left);
        let unread = state.take_unread(share);
        state.reader = None;
        drop(state);
        drop(unread);
        former == Phase::Writing
    }
}

impl State {
    fn has_room(&self, size: usize, bounds: Bounds) -> bool {
        let waiting = usize::from(self.head.is_some()) + self.rest.len();
        let fits = |held: usize, most: u32| u32::try_from(held).is_ok_and(|held| held <= most);
        // The first message always fits, also behind the frames that begin a replay. Otherwise a
        // client that resumes before a large message would never receive it.
        waiting == 0
            || (fits(waiting + 1, bounds.frames_max)
                && (self.bytes == 0 || fits(self.bytes.saturating_add(size), bounds.bytes_max)))
    }

    fn push(&mut self, event: ReplyEvent) {
        if self.head.is_none() {
            self.head = Some(event);
        } else {
            self.rest.push_back(event);
        }
    }

    fn pop(&mut self, share: &Share) -> Option<ReplyEvent> {
        let event = self.head.take()?;
        if let ReplyEvent::Frame(frame) = &event {
            let left = self.bytes.saturating_sub(size_of_frame(frame));
            share.release(in_granules(self.bytes) - in_granules(left));
            self.bytes = left;
        }
        self.head = self.rest.pop_front();
        if self.rest.is_empty() && self.rest.capacity() > 0 {
            self.rest = VecDeque::new();
        }
        Some(event)
    }

    /// Removes all events, and gives back what was charged for them. The caller drops them after it
    /// has released the lock.
    #[must_use]
    fn take_unread(&mut self, share: &Share) -> (Option<ReplyEvent>, VecDeque<ReplyEvent>) {
        share.release(in_granules(self.bytes));
        self.bytes = 0;
        (self.head.take(), std::mem::take(&mut self.rest))
    }

    /// Whether the log holds every unread message, and the head of the stream was read: then a
    /// client that is cut can request them again. The log keeps the events from `first_kept` on.
    fn is_logged(&self, first_kept: u64) -> bool {
        let is_logged = |event: &ReplyEvent| match event {
            ReplyEvent::Frame(Frame::Message { id, .. }) => {
                id.is_some_and(|id| id.number >= first_kept)
            }
            ReplyEvent::Frame(_) => true,
            _ => false,
        };
        self.head.iter().chain(&self.rest).all(is_logged)
    }
}

/// Wakes the reader after the lock is released.
fn wake(mut state: MutexGuard<'_, State>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

/// The bytes that a frame counts against the bound of a queue.
fn size_of_frame(frame: &Frame) -> usize {
    match frame {
        Frame::Message { data, .. } => data.len(),
        Frame::Cursor { .. } | Frame::Retry(_) | Frame::KeepAlive => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use budget::{Budget, GRANULE_BYTES};
    use bytes::Bytes;

    use super::*;

    const BOUNDS: Bounds = Bounds { frames_max: 3, bytes_max: 100 };

    /// A share without a bound that no test looks at: small frames are charged for nothing.
    fn share() -> Share {
        Budget::unlimited().unnamed_share("acme")
    }

    fn message(length: usize) -> Frame {
        Frame::Message { id: None, data: Bytes::from(vec![b'x'; length]) }
    }

    fn take(queue: &ReplyQueue) -> Poll<Option<String>> {
        let mut context = Context::from_waker(Waker::noop());
        queue.poll_next(&mut context, &share()).map(|event| {
            event.map(|event| match event {
                ReplyEvent::Answer(Answer::Refused(_)) => "refused".into(),
                ReplyEvent::Answer(_) => "answer".into(),
                ReplyEvent::Open { .. } => "open".into(),
                ReplyEvent::Frame(Frame::Message { data, .. }) => data.len().to_string(),
                ReplyEvent::Frame(_) => "frame".into(),
                ReplyEvent::Abort => "abort".into(),
                ReplyEvent::Moved => "moved".into(),
                ReplyEvent::LeaseLost { .. } => "lease lost".into(),
            })
        })
    }

    fn check(write: impl FnOnce(Sink), expected: &[&str]) {
        let (sink, queue) = Sink::new(SinkId(1), BOUNDS, false);
        write(sink);
        let mut event = Vec::new();
        while let Poll::Ready(Some(next)) = take(&queue) {
            event.push(next);
        }
        assert_eq!(event, expected);
        assert!(matches!(take(&queue), Poll::Ready(None)));
    }

    #[test]
    fn an_answer_is_the_first_and_last_event() {
        check(|sink| sink.answer(Answer::Accepted), &["answer"]);
    }

    #[test]
    fn frames_arrive_in_order_and_then_the_end() {
        check(
            |sink| {
                sink.open(false, None);
                sink.write(message(1), &share());
                sink.write(message(2), &share());
                sink.finish(Ending::Proper);
            },
            &["open", "1", "2"],
        );
    }

    #[test]
    fn a_sink_dropped_after_it_was_taken_yields_moved_and_before_that_a_refusal() {
        check(drop, &["refused"]);
        check(|mut sink| sink.take(), &["moved"]);
        check(|sink| assert_eq!(sink.open(false, None), Wrote::Taken), &["open", "moved"]);
    }

    #[test]
    fn an_abandoned_stream_of_a_moved_session_yields_moved_and_a_call_is_refused() {
        check(|sink| sink.abandon(Refusal::Moved), &["refused"]);
        check(
            |sink| {
                assert_eq!(sink.open(false, None), Wrote::Taken);
                sink.abandon(Refusal::Moved);
            },
            &["open", "moved"],
        );
        check(
            |sink| {
                assert_eq!(sink.open(false, None), Wrote::Taken);
                sink.finish(Ending::Moved);
            },
            &["open", "moved"],
        );
    }

    #[test]
    fn a_reader_that_falls_behind_is_cut_after_the_queued_events() {
        check(
            |sink| {
                assert_eq!(sink.open(false, None), Wrote::Taken);
                assert_eq!(sink.write(message(1), &share()), Wrote::Taken);
                assert_eq!(sink.write(message(2), &share()), Wrote::Taken);
                assert_eq!(sink.write(message(3), &share()), Wrote::Cut);
                assert_eq!(sink.write(message(4), &share()), Wrote::Cut);
            },
            &["open", "1", "2", "abort"],
        );
    }

    #[test]
    fn bytes_are_bounded_but_one_large_frame_always_passes() {
        let (sink, queue) = Sink::new(SinkId(1), BOUNDS, true);
        assert_eq!(sink.write(message(1_000), &share()), Wrote::Taken);
        assert_eq!(take(&queue), Poll::Ready(Some("1000".into())));
        assert_eq!(sink.write(message(60), &share()), Wrote::Taken);
        assert_eq!(sink.write(message(60), &share()), Wrote::Cut);
    }

    #[test]
    fn one_large_message_passes_behind_the_first_frames_of_a_replay() {
        let id = EventId { stream: 1, owner_tag: conversation::OwnerTag(1), number: 1 };
        check(
            |sink| {
                assert_eq!(sink.open(false, Some(id)), Wrote::Taken);
                assert_eq!(sink.write(Frame::Cursor { id, retry: 1 }, &share()), Wrote::Taken);
                assert_eq!(sink.write(message(1_000), &share()), Wrote::Taken);
            },
            &["open", "frame", "1000", "moved"],
        );
    }

    fn logged(length: usize) -> Frame {
        let id = EventId { stream: 1, owner_tag: conversation::OwnerTag(1), number: 1 };
        Frame::Message { id: Some(id), data: Bytes::from(vec![b'x'; length]) }
    }

    #[test]
    fn unread_bytes_are_charged_until_they_are_read_or_the_reader_leaves() {
        let bounds = Bounds { frames_max: 9, bytes_max: 99 << 10 };
        let share = share();
        let (sink, queue) = Sink::new(SinkId(1), bounds, true);
        for _ in 0..3 {
            assert_eq!(sink.write(logged(GRANULE_BYTES - 1), &share), Wrote::Taken);
        }
        assert_eq!(share.used(), 2 * GRANULE_BYTES, "whole granules are charged");
        let mut context = Context::from_waker(Waker::noop());
        assert!(queue.poll_next(&mut context, &share).is_ready());
        assert_eq!(share.used(), GRANULE_BYTES);
        queue.leave(&share);
        assert_eq!(share.used(), 0);
        assert_eq!(sink.write(logged(GRANULE_BYTES), &share), Wrote::Cut);
        assert_eq!(share.used(), 0, "nothing is charged for a reader that has left");
    }

    #[test]
    fn a_full_queue_is_cut_and_one_with_an_event_that_no_log_holds_is_not() {
        let bounds = Bounds { frames_max: 9, bytes_max: 99 << 10 };
        let share = share();
        let (sink, queue) = Sink::new(SinkId(1), bounds, true);
        assert_eq!(sink.write(logged(2 * GRANULE_BYTES), &share), Wrote::Taken);
        assert!(!sink.cut_unread(2 * GRANULE_BYTES + 1, 1, &share), "it holds less");
        assert!(!sink.cut_unread(2 * GRANULE_BYTES, 2, &share), "the log has dropped the event");
        assert!(sink.cut_unread(2 * GRANULE_BYTES, 1, &share));
        assert_eq!(share.used(), 0);
        assert_eq!(take(&queue), Poll::Ready(Some("abort".into())));
        assert_eq!(take(&queue), Poll::Ready(None));

        let (sink, _queue) = Sink::new(SinkId(2), bounds, true);
        assert_eq!(sink.write(message(2 * GRANULE_BYTES), &share), Wrote::Taken);
        assert!(!sink.cut_unread(GRANULE_BYTES, 1, &share));
    }

    #[test]
    fn a_reader_that_waits_is_woken_once_for_each_wait() {
        #[derive(Default)]
        struct Woken(AtomicU32);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let (sink, queue) = Sink::new(SinkId(1), BOUNDS, true);
        assert!(queue.poll_next(&mut Context::from_waker(&waker), &share()).is_pending());
        sink.write(message(1), &share());
        sink.write(message(1), &share());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_session_is_notified_of_a_reader_that_leaves_before_the_end_only() {
        let (sink, queue) = Sink::new(SinkId(1), BOUNDS, false);
        assert!(queue.leave(&share()));
        assert!(sink.is_left());
        assert_eq!(sink.write(message(1), &share()), Wrote::Cut);
        let (sink, queue) = Sink::new(SinkId(2), BOUNDS, false);
        sink.answer(Answer::Accepted);
        assert!(!queue.leave(&share()));
    }
}
