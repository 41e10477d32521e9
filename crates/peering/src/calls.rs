//! The calls of one node to another, over all links that the two nodes make.
//!
//! Three parties use this module: callers, which make and drop calls and take replies; the
//! writer of the connection, which takes frames to write; and its reader, which passes on the
//! frames of the peer. None of them ever waits for another. [`Calls::broke`] decides which calls
//! may be made again.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use tick::Deferred;

use crate::assembly::{Assembly, First, Next};
use crate::frame::{self, Credit, Kind, Open, Piece, Reply, TooLarge};
use crate::{CallError, metrics};

/// The calls of one node to another.
pub struct Calls {
    limits: Limits,
    state: Mutex<State>,
}

/// How much there may be of what.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Calls, those included that wait for the link or for their caller to look.
    pub calls: usize,
    /// Bytes of calls that wait for the link.
    pub waiting_bytes: usize,
    /// Bytes of one call, or of one reply.
    pub message_bytes: usize,
    /// Frames with replies of one call that its caller has not taken. Only where its caller
    /// waits for a reply that arrives in pieces are the pieces not counted, so what one call
    /// keeps here is at most a whole reply and so many frames.
    pub window: u32,
}

#[derive(Default)]
struct State {
    phase: Phase,
    /// The last attempt to connect has failed.
    unreachable: bool,
    /// Which link this is to the peer; the connection of an earlier one gets nothing.
    link: u64,
    /// The next call's id. Goes on over all links to the peer.
    next: u64,
    calls: HashMap<u64, Call>,
    /// What waits for the link; for a call at most an opening, a credit and a cancellation.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// What is said goes over this while the link is up.
    connection: Option<Arc<dyn Deferred>>,
}

/// How the link is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// There is no link, and no attempt to make one.
    #[default]
    Down,
    /// An attempt to connect is under way; calls wait.
    Connecting,
    /// Calls may be written.
    Up,
}

/// Something to be written.
enum Waiting {
    /// A call, or the next piece of it.
    Open(u64),
    Credit(u64),
    Cancel(u64),
}

struct Call {
    progress: Progress,
    /// At most a window of them.
    replies: VecDeque<Arrived>,
    /// The reply that is arriving in pieces.
    assembly: Option<Assembly>,
    /// Frames of the reply that is arriving which count against the window.
    assembling: u32,
    /// Frames that count against the window: those of `replies` and `assembling`.
    kept: u32,
    /// Frames that were taken and not credited yet.
    taken: u32,
    /// Its credit waits for the link.
    crediting: bool,
    waker: Option<Waker>,
}

/// A reply that its caller has not taken.
struct Arrived {
    body: Bytes,
    /// Frames that are credited when it is taken.
    frames: u32,
}

enum Progress {
    /// No byte of it was handed to the socket.
    Waiting(Bytes),
    /// Pieces were handed to the socket, and this is left. The callee does not begin a call
    /// that it has not received whole.
    Sending(Bytes),
    /// All of it was handed to the socket: it may have begun.
    Sent,
    /// Nothing more will come.
    Over(Result<(), CallError>),
}

impl Calls {
    /// Nothing is connected yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Makes a call. Fails at a bound: then it is not started. Answers with the call's id, and
    /// whether the caller of this must have the peer connected.
    pub fn open(&self, body: Bytes) -> Result<(u64, bool), CallError> {
        self.try_open(body).inspect_err(|error| metrics::outcome((*error).into()))
    }

    fn try_open(&self, body: Bytes) -> Result<(u64, bool), CallError> {
        if body.len() > self.limits.message_bytes {
            return Err(CallError::TooLarge { bytes_max: self.limits.message_bytes as u64 });
        }
        let mut state = self.state();
        // Each call leaves at most a cancellation behind; a link that is slow to take
        // those is not given more.
        let full = state.calls.len() >= self.limits.calls
            || state.waiting.len() >= self.limits.calls.saturating_mul(4)
            || state.waiting_bytes.saturating_add(body.len()) > self.limits.waiting_bytes;
        if full {
            return Err(CallError::NotStarted);
        }
        let id = state.next;
        state.next += 1;
        state.waiting_bytes += body.len();
        let call = Call {
            progress: Progress::Waiting(body),
            replies: VecDeque::new(),
            assembly: None,
            assembling: 0,
            kept: 0,
            taken: 0,
            crediting: false,
            waker: None,
        };
        state.calls.insert(id, call);
        state.waiting.push_back(Waiting::Open(id));
        let connect = state.phase == Phase::Down;
        if connect {
            state.phase = Phase::Connecting;
        }
        state.flush_later();
        drop(state);
        metrics::CALLS_OPEN.inc();
        Ok((id, connect))
    }

    /// The next thing that came of a call.
    pub fn poll_reply(
        &self,
        id: u64,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, CallError>>> {
        let mut state = self.state();
        let state = &mut *state;
        let Some(call) = state.calls.get_mut(&id) else { return Poll::Ready(None) };
        if let Some(reply) = call.replies.pop_front() {
            call.took(reply.frames);
            if call.owes_credit(self.limits.window) {
                state.waiting.push_back(Waiting::Credit(id));
                state.flush_later();
            }
            return Poll::Ready(Some(Ok(reply.body)));
        }
        match &mut call.progress {
            Progress::Over(Ok(())) => Poll::Ready(None),
            Progress::Over(Err(error)) => {
                let error = *error;
                call.progress = Progress::Over(Ok(()));
                Poll::Ready(Some(Err(error)))
            }
            Progress::Waiting(_) | Progress::Sending(_) | Progress::Sent => {
                if !call.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    call.waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Is nothing more to come of a call, as far as is known?
    pub fn is_over(&self, id: u64) -> bool {
        self.state().calls.get(&id).is_none_or(|call| {
            call.replies.is_empty() && matches!(call.progress, Progress::Over(Ok(())))
        })
    }

    /// The caller is gone.
    pub fn forget(&self, id: u64) {
        let mut state = self.state();
        let Some(call) = state.calls.remove(&id) else { return };
        match &call.progress {
            Progress::Waiting(body) => {
                // Its queued opening stays: the writer skips it.
                state.waiting_bytes -= body.len();
                metrics::outcome(metrics::Outcome::Cancelled);
            }
            Progress::Sending(_) | Progress::Sent => {
                if let Progress::Sending(rest) = &call.progress {
                    state.waiting_bytes -= rest.len();
                }
                state.waiting.push_back(Waiting::Cancel(id));
                state.flush_later();
                metrics::outcome(metrics::Outcome::Cancelled);
            }
            Progress::Over(_) => {}
        }
        drop(state);
        metrics::CALLS_OPEN.dec();
    }

    /// Asks for a link although there is no call. True where the caller is to connect.
    pub fn want(&self) -> bool {
        let mut state = self.state();
        let connect = state.phase == Phase::Down;
        if connect {
            state.phase = Phase::Connecting;
        }
        connect
    }

    /// Is there no link, and no attempt to make one?
    pub fn is_down(&self) -> bool {
        self.state().phase == Phase::Down
    }

    /// Is the link up?
    pub fn is_up(&self) -> bool {
        self.state().phase == Phase::Up
    }

    /// Has the last attempt to connect failed?
    pub fn is_unreachable(&self) -> bool {
        self.state().unreachable
    }

    /// Which link this is, for [`Calls::write_frames`].
    pub(crate) fn link(&self) -> u64 {
        self.state().link
    }

    /// The two know each other: calls may be written.
    pub(crate) fn up(&self, connection: Arc<dyn Deferred>) {
        let mut state = self.state();
        state.phase = Phase::Up;
        state.unreachable = false;
        state.connection = Some(connection);
        state.flush_later();
    }

    /// Appends what there is to say, until there is enough. From here on a call counts as
    /// sent: bytes of it may reach the peer. Nothing where the link is not this one any more.
    pub(crate) fn write_frames(&self, link: u64, out: &mut BytesMut, enough_bytes: usize) {
        while out.len() < enough_bytes
            && let Some(kind) = self.next(link)
        {
            // It is copied here, and others make calls meanwhile.
            kind.write_to(out);
        }
    }

    fn next(&self, link: u64) -> Option<Kind> {
        let mut state = self.state();
        if state.link != link || state.phase != Phase::Up {
            return None;
        }
        while let Some(waiting) = state.waiting.pop_front() {
            let kind = state.kind(&waiting, self.limits.window);
            if kind.is_some() {
                return kind;
            }
        }
        None
    }

    /// Takes a frame of the peer. False for a frame that no node sends.
    pub(crate) fn take(&self, kind: Kind) -> bool {
        match kind {
            Kind::Reply(reply) => self.reply(reply),
            Kind::End(id) => self.finish(id, Ok(())),
            Kind::Failed(id) => self.finish(id, Err(CallError::Lost)),
            Kind::NotStarted(id) => self.finish(id, Err(CallError::NotStarted)),
            Kind::TooLarge(TooLarge { id, bytes_max }) => {
                self.finish(id, Err(CallError::TooLarge { bytes_max }))
            }
            _ => false,
        }
    }

    /// The link broke, or the attempt to connect failed. A call that was handed to the link
    /// completely may have begun; any other call has not. `again`: a further attempt follows.
    pub fn broke(&self, again: bool) {
        let mut state = self.state();
        state.unreachable |= state.phase == Phase::Connecting;
        state.phase = if again { Phase::Connecting } else { Phase::Down };
        state.link += 1;
        let connection = state.connection.take();
        state.waiting.clear();
        state.waiting_bytes = 0;
        let mut wakers = Vec::new();
        for call in state.calls.values_mut() {
            let error = match call.progress {
                Progress::Waiting(_) | Progress::Sending(_) => CallError::NotStarted,
                Progress::Sent => CallError::Lost,
                Progress::Over(_) => continue,
            };
            call.progress = Progress::Over(Err(error));
            metrics::outcome(error.into());
            wakers.extend(call.waker.take());
        }
        drop(state);
        drop(connection);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Takes a reply, or a piece of one.
    fn reply(&self, Reply { id, body, last, rest }: Reply) -> bool {
        let Limits { window, message_bytes, .. } = self.limits;
        self.change(id, |call| {
            // Its callee has not learnt yet that it was cancelled.
            if matches!(call.progress, Progress::Over(_)) {
                return Change::None;
            }
            // No honest peer sends more than it was given credit for.
            if call.kept >= window {
                return Change::Malformed;
            }
            call.kept += 1;
            let whole = match call.assembly.take() {
                None => match Assembly::begin(body, rest, message_bytes) {
                    First::Whole(body) => body,
                    First::Begun(assembly) => return call.assembles(assembly),
                    First::TooLarge => {
                        let bytes_max = message_bytes as u64;
                        call.finish(Err(CallError::TooLarge { bytes_max }));
                        return Change::Cancel;
                    }
                },
                Some(mut assembly) => match assembly.add(&body, rest) {
                    Next::More => return call.assembles(assembly),
                    Next::Whole(body) => body,
                    Next::Malformed => return Change::Malformed,
                },
            };
            let frames = mem::take(&mut call.assembling) + 1;
            call.replies.push_back(Arrived { body: whole, frames });
            if last {
                call.finish(Ok(()));
            }
            Change::Wake
        })
    }

    fn finish(&self, id: u64, result: Result<(), CallError>) -> bool {
        self.change(id, |call| {
            call.finish(result);
            Change::Wake
        })
    }

    /// Changes a call and wakes its caller. A call that is not there was dropped by its
    /// caller; the peer will hear of it.
    fn change(&self, id: u64, change: impl FnOnce(&mut Call) -> Change) -> bool {
        let mut state = self.state();
        let Some(call) = state.calls.get_mut(&id) else { return true };
        let unsent = match &call.progress {
            // It was told of no such call.
            Progress::Waiting(_) => return false,
            // Its other pieces are of no use if the call is over.
            Progress::Sending(rest) => rest.len(),
            Progress::Sent | Progress::Over(_) => 0,
        };
        let change = change(call);
        let is_over = matches!(call.progress, Progress::Over(_));
        let credits = call.owes_credit(self.limits.window);
        let waker = match change {
            Change::Malformed => return false,
            Change::None => None,
            Change::Wake | Change::Cancel => call.waker.take(),
        };
        if is_over {
            state.waiting_bytes -= unsent;
        }
        if matches!(change, Change::Cancel) {
            state.waiting.push_back(Waiting::Cancel(id));
            state.flush_later();
        } else if credits {
            state.waiting.push_back(Waiting::Credit(id));
            state.flush_later();
        }
        drop(state);
        if let Some(waker) = waker {
            tick::defer_wake(waker);
        }
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What follows from what arrived for a call.
enum Change {
    /// Nothing for its caller.
    None,
    /// Its caller has something to take.
    Wake,
    /// As `Wake`, and the callee is to stop.
    Cancel,
    /// No node sends this.
    Malformed,
}

impl Call {
    /// Goes on with a reply of which pieces are still to come. While its caller has nothing
    /// else to take, the pieces are credited as they come: the caller waits for the whole.
    fn assembles(&mut self, assembly: Assembly) -> Change {
        self.assembly = Some(assembly);
        self.assembling += 1;
        if self.replies.is_empty() {
            let frames = mem::take(&mut self.assembling);
            self.credits(frames);
        }
        Change::None
    }

    /// Its caller took a reply of so many frames.
    fn took(&mut self, mut frames: u32) {
        if self.replies.is_empty() {
            frames += mem::take(&mut self.assembling);
        }
        self.credits(frames);
    }

    fn credits(&mut self, frames: u32) {
        self.kept -= frames;
        self.taken += frames;
    }

    /// Is credit to be given now? Half a window at once: fewer frames, and the callee never
    /// has to stop.
    fn owes_credit(&mut self, window: u32) -> bool {
        let over = matches!(self.progress, Progress::Over(_));
        let owes = !over && !self.crediting && self.taken >= window.div_ceil(2);
        self.crediting |= owes;
        owes
    }

    fn finish(&mut self, result: Result<(), CallError>) {
        if !matches!(self.progress, Progress::Over(_)) {
            self.progress = Progress::Over(result);
            metrics::outcome(result.into());
        }
    }
}

impl State {
    /// What to write; `None` if it is of no use any more.
    fn kind(&mut self, waiting: &Waiting, window: u32) -> Option<Kind> {
        Some(match *waiting {
            Waiting::Cancel(id) => Kind::Cancel(id),
            Waiting::Credit(id) => {
                let call = self.calls.get_mut(&id)?;
                call.crediting = false;
                Kind::Credit(Credit { id, more: mem::take(&mut call.taken) })
            }
            Waiting::Open(id) => {
                let call = self.calls.get_mut(&id)?;
                let (mut body, begins) = match mem::replace(&mut call.progress, Progress::Sent) {
                    Progress::Waiting(body) => (body, true),
                    Progress::Sending(body) => (body, false),
                    // It was refused before all of it was written.
                    over => {
                        call.progress = over;
                        return None;
                    }
                };
                let (piece, rest) = frame::split_piece(&mut body);
                self.waiting_bytes -= piece.len();
                if rest > 0 {
                    call.progress = Progress::Sending(body);
                    // At the end: other calls have their turn between two pieces.
                    self.waiting.push_back(Waiting::Open(id));
                }
                if begins {
                    Kind::Open(Open { id, window, body: piece, rest })
                } else {
                    Kind::OpenMore(Piece { id, body: piece, rest })
                }
            }
        })
    }

    /// There is something to say.
    fn flush_later(&self) {
        if let Some(connection) = &self.connection {
            tick::defer(connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::frame::Frame;

    struct Mute;

    impl Deferred for Mute {
        fn perform(&self) {}

        fn perform_elsewhere(&self) {}
    }

    fn calls() -> Calls {
        let limits = Limits { calls: 4, waiting_bytes: 1_000, message_bytes: 1_000, window: 4 };
        let calls = Calls::new(limits);
        calls.up(Arc::new(Mute));
        calls
    }

    fn written(calls: &Calls) -> Option<Kind> {
        let mut said = BytesMut::new();
        calls.write_frames(0, &mut said, 1);
        let frame = (!said.is_empty()).then(|| Frame::decode_length_delimited(said));
        frame.and_then(|frame| frame.expect("a frame").kind)
    }

    #[test]
    fn who_goes_with_the_last_reply_leaves_nothing_to_cancel() {
        for last in [true, false] {
            let calls = calls();
            let (id, _) = calls.open(Bytes::from_static(b"a call")).expect("there is room");
            assert!(matches!(written(&calls), Some(Kind::Open(_))));
            let body = Bytes::from_static(b"a reply");
            assert!(calls.take(Kind::Reply(Reply { id, body, last, rest: 0 })));
            calls.forget(id);
            assert_eq!(written(&calls), (!last).then_some(Kind::Cancel(id)));
        }
    }

    #[test]
    fn after_the_last_reply_comes_nothing() {
        let calls = calls();
        let (id, _) = calls.open(Bytes::from_static(b"a call")).expect("there is room");
        written(&calls);
        let body = Bytes::from_static(b"a reply");
        assert!(calls.take(Kind::Reply(Reply { id, body: body.clone(), last: true, rest: 0 })));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(calls.poll_reply(id, &mut context), Poll::Ready(Some(Ok(body))));
        assert_eq!(calls.poll_reply(id, &mut context), Poll::Ready(None));
        calls.broke(true);
        assert_eq!(calls.poll_reply(id, &mut context), Poll::Ready(None));
    }
}
