//! The calls of one peer, at the node that answers them.
//!
//! A call is polled only when it was woken and its caller has given credit. Calls take turns, also
//! between the pieces of a long reply. No code here waits for one call.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use bytes::{Bytes, BytesMut};
use tick::Deferred;

use crate::assembly::{Assembly, First, Next};
use crate::connection::FrameHandler;
use crate::frame::{self, Credit, Kind, Open, Piece, Reply, TooLarge};
use crate::{Answerer, CallError, Limits, Replies};

/// The most refusals that wait to be written. An honest peer has fewer calls in progress.
const REFUSED_MAX: usize = 1 << 20;

/// The calls of one peer, and the frames to write for them.
pub(crate) struct IncomingCalls {
    answerer: Arc<dyn Answerer>,
    limits: Limits,
    state: Mutex<State>,
    ready: Arc<Ready>,
}

#[derive(Default)]
struct State {
    /// The refusals of calls that were not started.
    refused: VecDeque<Kind>,
    /// Calls that have not arrived completely. Together with `calls` at most `calls_max`.
    arriving: HashMap<u64, Arriving>,
    /// The bytes of these calls, each counted at full length; at most `waiting_bytes_max`.
    arriving_bytes: usize,
    calls: HashMap<u64, IncomingCall>,
}

/// A call with pieces that have not arrived yet.
struct Arriving {
    assembly: Assembly,
    window: u32,
}

struct IncomingCall {
    replies: Box<dyn Replies>,
    /// The unsent part of a reply that is sent in pieces.
    rest: Option<Rest>,
    /// The number of frames that the caller accepts. Unread replies wait at the caller, not here.
    credit: u32,
    wakes: Arc<Wakes>,
    waker: Waker,
}

/// The unsent part of a reply.
struct Rest {
    body: Bytes,
    /// The reply is the last of its call.
    last: bool,
}

/// The queue of calls that were woken.
struct Ready {
    /// Contains each call at most once, which [`Wakes::queued`] ensures. `None` after the
    /// connection has ended.
    calls: Mutex<Option<VecDeque<Arc<Wakes>>>>,
    /// The connection that carries their replies.
    connection: Weak<dyn Deferred>,
}

/// The waker of one call.
struct Wakes {
    id: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl IncomingCalls {
    /// Replies are written to `connection`.
    pub(crate) fn new(
        answerer: Arc<dyn Answerer>,
        limits: Limits,
        connection: Weak<dyn Deferred>,
    ) -> Self {
        let ready = Arc::new(Ready { calls: Mutex::new(Some(VecDeque::new())), connection });
        Self { answerer, limits, state: Mutex::default(), ready }
    }

    /// Ends every call: the connection has ended.
    pub(crate) fn end_calls(&self) {
        self.ready.calls().take();
        let ended = mem::take(&mut *self.state());
        // Not under the lock.
        drop(ended);
    }

    fn open(&self, open: Open) -> bool {
        let Open { id, window, body, rest } = open;
        let limits = self.limits;
        let mut state = self.state();
        let known = state.calls.contains_key(&id) || state.arriving.contains_key(&id);
        let full = state.calls.len() + state.arriving.len() >= limits.calls;
        if known || full || !self.answerer.takes_calls() {
            return state.refuse(Kind::NotStarted(id));
        }
        match Assembly::begin_message(body, rest, limits.message_bytes) {
            First::Whole(body) => {
                drop(state);
                self.start_call(id, window, body)
            }
            First::Begun(assembly) => {
                let bytes = state.arriving_bytes.saturating_add(assembly.whole_bytes());
                if bytes > limits.waiting_bytes {
                    return state.refuse(Kind::NotStarted(id));
                }
                state.arriving_bytes = bytes;
                state.arriving.insert(id, Arriving { assembly, window });
                true
            }
            First::TooLarge => {
                let bytes_max = limits.message_bytes as u64;
                state.refuse(Kind::TooLarge(TooLarge { id, bytes_max }))
            }
        }
    }

    fn open_more(&self, Piece { id, body, rest }: Piece) -> bool {
        let mut state = self.state();
        // An unknown call was refused; the refusal had not reached the caller yet.
        let Some(arriving) = state.arriving.get_mut(&id) else { return true };
        match arriving.assembly.add(&body, rest) {
            Next::More => true,
            Next::Whole(body) => {
                let window = arriving.window;
                state.arriving.remove(&id);
                state.arriving_bytes -= body.len();
                drop(state);
                self.start_call(id, window, body)
            }
            Next::Malformed => false,
        }
    }

    /// Starts a call that has arrived completely.
    fn start_call(&self, id: u64, window: u32, body: Bytes) -> bool {
        let replies = self.answerer.begin_call(body);
        let mut state = self.state();
        let Some(replies) = replies else { return state.refuse(Kind::NotStarted(id)) };
        let queued = AtomicBool::new(false);
        let wakes = Arc::new(Wakes { id, queued, ready: self.ready.clone() });
        wakes.queue();
        let waker = Waker::from(wakes.clone());
        let call = IncomingCall { replies, rest: None, credit: window, wakes, waker };
        state.calls.insert(id, call);
        true
    }

    fn cancel(&self, id: u64) {
        let mut state = self.state();
        if let Some(arriving) = state.arriving.remove(&id) {
            state.arriving_bytes -= arriving.assembly.whole_bytes();
        }
        let call = state.calls.remove(&id);
        drop(state);
        // Not under the lock.
        drop(call);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Queues a refusal. Returns `false` if more refusals wait than an honest peer can cause.
    fn refuse(&mut self, refusal: Kind) -> bool {
        self.refused.push_back(refusal);
        self.refused.len() <= REFUSED_MAX
    }

    /// The next frame of any call, and the call itself if it has ended.
    fn next(
        &mut self,
        ready: &Ready,
        message_bytes_max: usize,
    ) -> Option<(Kind, Option<IncomingCall>)> {
        if let Some(refusal) = self.refused.pop_front() {
            return Some((refusal, None));
        }
        loop {
            let wakes = ready.calls().as_mut()?.pop_front()?;
            // Reset before the call is polled, so that a wake-up during the poll queues the call
            // again.
            wakes.queued.store(false, Ordering::Release);
            // Skips a call that was cancelled or that waits for credit.
            let Some(call) = self.calls.get_mut(&wakes.id) else { continue };
            if call.credit == 0 {
                continue;
            }
            match call.next(wakes.id, message_bytes_max) {
                Poll::Pending => {}
                Poll::Ready(Ok(reply)) if reply.last => {
                    return Some((Kind::Reply(reply), self.calls.remove(&wakes.id)));
                }
                Poll::Ready(Ok(reply)) => {
                    call.credit -= 1;
                    // Queued at the end: other calls are polled between two pieces.
                    wakes.queue();
                    return Some((Kind::Reply(reply), None));
                }
                Poll::Ready(Err(over)) => return Some((over, self.calls.remove(&wakes.id))),
            }
        }
    }
}

impl IncomingCall {
    /// The next piece of the call's replies, or the frame that ends the call.
    fn next(&mut self, id: u64, message_bytes_max: usize) -> Poll<Result<Reply, Kind>> {
        let Rest { mut body, last } = match self.rest.take() {
            Some(rest) => rest,
            None => {
                let mut context = Context::from_waker(&self.waker);
                let body = match self.replies.poll_next(&mut context) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(None) => return Poll::Ready(Err(Kind::End(id))),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(end_frame(id, error))),
                    Poll::Ready(Some(Ok(body))) => body,
                };
                if body.len() > message_bytes_max {
                    tracing::warn!(
                        bytes = body.len(),
                        message_bytes_max,
                        "reply to a peer exceeds cluster.message_bytes_max; the call ends with \
                         an error; raise the setting on every node"
                    );
                    let bytes_max = message_bytes_max as u64;
                    return Poll::Ready(Err(end_frame(id, CallError::TooLarge { bytes_max })));
                }
                Rest { body, last: self.replies.is_over() }
            }
        };
        let (piece, rest) = frame::split_piece(&mut body);
        if rest > 0 {
            self.rest = Some(Rest { body, last });
        }
        Poll::Ready(Ok(Reply { id, body: piece, last: last && rest == 0, rest }))
    }
}

/// The frame that reports to the caller how its call failed.
fn end_frame(id: u64, error: CallError) -> Kind {
    match error {
        CallError::NotStarted => Kind::NotStarted(id),
        CallError::Lost => Kind::Failed(id),
        CallError::TooLarge { bytes_max } => Kind::TooLarge(TooLarge { id, bytes_max }),
    }
}

impl FrameHandler for IncomingCalls {
    fn handle_frame(&self, kind: Kind) -> bool {
        match kind {
            Kind::Open(open) => return self.open(open),
            Kind::OpenMore(piece) => return self.open_more(piece),
            Kind::Cancel(id) => self.cancel(id),
            Kind::Credit(Credit { id, more }) => {
                // An unknown call has ended; the end had not reached the caller yet.
                if let Some(call) = self.state().calls.get_mut(&id) {
                    call.credit = call.credit.saturating_add(more);
                    call.wakes.queue();
                }
            }
            _ => return false,
        }
        true
    }

    fn write_frames(&self, out: &mut BytesMut, enough_bytes: usize) {
        let message_bytes_max = self.limits.message_bytes;
        while out.len() < enough_bytes {
            let next = self.state().next(&self.ready, message_bytes_max);
            let Some((kind, ended)) = next else { return };
            kind.write_to(out);
            // Not under the lock.
            drop(ended);
        }
    }
}

impl Ready {
    fn calls(&self) -> MutexGuard<'_, Option<VecDeque<Arc<Wakes>>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wakes {
    fn queue(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Some(calls) = &mut *self.ready.calls()
        {
            calls.push_back(self.clone());
        }
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.queue();
        if let Some(connection) = self.ready.connection.upgrade() {
            tick::defer(&connection);
        }
    }
}
