//! The bounded queue from a session to one connection of its client.
//!
//! The session never waits for a connection. A full queue is cut: the events in it are still sent,
//! then the stream breaks off, and the client resumes from the log. A replay fits into an empty
//! queue, so the client advances with each resume. Most queued payloads are shared with the log,
//! and an idle queue allocates no memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use conversation::{Answer, Ending, EventId, Frame, Refusal, SinkId};

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
        (Self { id, queue: Arc::clone(&queue), taken: false }, queue)
    }

    /// Marks the sink as taken by the session, which may start the request now. If the sink is
    /// dropped later, its reader gets [`ReplyEvent::Moved`] instead of the refusal of a request
    /// that was not started.
    pub(crate) fn take(&mut self) {
        self.taken = true;
    }

    /// Sends the whole answer.
    pub(crate) fn answer(self, answer: Answer) {
        self.queue.end_reply(Some(ReplyEvent::Answer(answer)));
    }

    /// Makes the reply a stream, which a client can resume at `at`.
    pub(crate) fn open(&self, welcome: bool, at: Option<EventId>) -> Wrote {
        self.queue.write(ReplyEvent::Open { welcome, at }, 0)
    }

    /// Writes one frame.
    pub(crate) fn write(&self, frame: Frame) -> Wrote {
        let size = size_of_frame(&frame);
        self.queue.write(ReplyEvent::Frame(frame), size)
    }

    /// Ends the stream.
    pub(crate) fn finish(self, ending: Ending) {
        self.queue.end_reply(match ending {
            Ending::Proper => None,
            Ending::Abort => Some(ReplyEvent::Abort),
            Ending::Moved => Some(ReplyEvent::Moved),
        });
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

    fn write(&self, event: ReplyEvent, size: usize) -> Wrote {
        let mut state = self.lock();
        if state.phase != Phase::Writing {
            return Wrote::Cut;
        }
        state.open = true;
        let wrote = if state.has_room(size, self.bounds) {
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

    /// The reader's next event.
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<ReplyEvent>> {
        let mut state = self.lock();
        if let Some(event) = state.pop() {
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

    /// Records that the reader has left. Returns whether the session is to be notified.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.lock();
        let former = std::mem::replace(&mut state.phase, Phase::Left);
        state.clear();
        state.reader = None;
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

    fn pop(&mut self) -> Option<ReplyEvent> {
        let event = self.head.take()?;
        if let ReplyEvent::Frame(frame) = &event {
            self.bytes = self.bytes.saturating_sub(size_of_frame(frame));
        }
        self.head = self.rest.pop_front();
        if self.rest.is_empty() && self.rest.capacity() > 0 {
            self.rest = VecDeque::new();
        }
        Some(event)
    }

    fn clear(&mut self) {
        self.head = None;
        self.rest = VecDeque::new();
        self.bytes = 0;
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

    use bytes::Bytes;

    use super::*;

    const BOUNDS: Bounds = Bounds { frames_max: 3, bytes_max: 100 };

    fn message(length: usize) -> Frame {
        Frame::Message { id: None, data: Bytes::from(vec![b'x'; length]) }
    }

    fn take(queue: &ReplyQueue) -> Poll<Option<String>> {
        let mut context = Context::from_waker(Waker::noop());
        queue.poll_next(&mut context).map(|event| {
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
                sink.write(message(1));
                sink.write(message(2));
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
                assert_eq!(sink.write(message(1)), Wrote::Taken);
                assert_eq!(sink.write(message(2)), Wrote::Taken);
                assert_eq!(sink.write(message(3)), Wrote::Cut);
                assert_eq!(sink.write(message(4)), Wrote::Cut);
            },
            &["open", "1", "2", "abort"],
        );
    }

    #[test]
    fn bytes_are_bounded_but_one_large_frame_always_passes() {
        let (sink, queue) = Sink::new(SinkId(1), BOUNDS, true);
        assert_eq!(sink.write(message(1_000)), Wrote::Taken);
        assert_eq!(take(&queue), Poll::Ready(Some("1000".into())));
        assert_eq!(sink.write(message(60)), Wrote::Taken);
        assert_eq!(sink.write(message(60)), Wrote::Cut);
    }

    #[test]
    fn one_large_message_passes_behind_the_first_frames_of_a_replay() {
        let id = EventId { stream: 1, owner_tag: conversation::OwnerTag(1), number: 1 };
        check(
            |sink| {
                assert_eq!(sink.open(false, Some(id)), Wrote::Taken);
                assert_eq!(sink.write(Frame::Cursor { id, retry: 1 }), Wrote::Taken);
                assert_eq!(sink.write(message(1_000)), Wrote::Taken);
            },
            &["open", "frame", "1000", "moved"],
        );
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
        assert!(queue.poll_next(&mut Context::from_waker(&waker)).is_pending());
        sink.write(message(1));
        sink.write(message(1));
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_session_is_notified_of_a_reader_that_leaves_before_the_end_only() {
        let (sink, queue) = Sink::new(SinkId(1), BOUNDS, false);
        assert!(queue.leave());
        assert!(sink.is_left());
        assert_eq!(sink.write(message(1)), Wrote::Cut);
        let (sink, queue) = Sink::new(SinkId(2), BOUNDS, false);
        sink.answer(Answer::Accepted);
        assert!(!queue.leave());
    }
}
