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

use crate::frame::{Credit, Kind, TooLarge};
use crate::outgoing_call::{Change, Left, OutgoingCall};
use crate::{CallError, Limits, metrics};

/// The calls of one node to another.
pub struct Calls {
    limits: Limits,
    state: Mutex<State>,
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
    calls: HashMap<u64, OutgoingCall>,
    /// What waits for the link; for a call at most an opening, a credit and a cancellation.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
}

/// How the link is.
#[derive(Default)]
enum Phase {
    /// There is no link, and no attempt to make one.
    #[default]
    Down,
    /// An attempt to connect is under way; calls wait.
    Connecting,
    /// Calls are written over this connection.
    Up(Arc<dyn Deferred>),
}

/// Something to be written.
enum Waiting {
    /// A call, or the next piece of it.
    Open(u64),
    Credit(u64),
    Cancel(u64),
}

impl Calls {
    /// Nothing is connected yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Makes a call. Fails at a bound: then it is not started. Answers with the call's id, and
    /// whether the caller of this must have the peer connected.
    pub fn open(&self, body: Bytes) -> Result<(u64, bool), CallError> {
        self.try_open(body).inspect_err(|error| metrics::count_outcome((*error).into()))
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
        state.calls.insert(id, OutgoingCall::new(body));
        state.waiting.push_back(Waiting::Open(id));
        let connect = state.begin_to_connect();
        state.write_later();
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
        if let Some(reply) = call.take_reply() {
            if call.owes_credit(self.limits.window) {
                state.waiting.push_back(Waiting::Credit(id));
                state.write_later();
            }
            return Poll::Ready(Some(Ok(reply)));
        }
        call.poll_end(context).map(|ended| ended.map(Err))
    }

    /// Is nothing more to come of a call, as far as is known?
    pub fn is_over(&self, id: u64) -> bool {
        self.state().calls.get(&id).is_none_or(OutgoingCall::is_over)
    }

    /// The caller is gone.
    pub fn forget(&self, id: u64) {
        let mut state = self.state();
        let Some(call) = state.calls.remove(&id) else { return };
        match call.left() {
            // Its queued opening stays: the writer skips it.
            Left::Unsent { bytes } => {
                state.waiting_bytes -= bytes;
                metrics::count_outcome(metrics::Outcome::Cancelled);
            }
            Left::Begun { bytes } => {
                state.waiting_bytes -= bytes;
                state.waiting.push_back(Waiting::Cancel(id));
                state.write_later();
                metrics::count_outcome(metrics::Outcome::Cancelled);
            }
            Left::Over => {}
        }
        drop(state);
        metrics::CALLS_OPEN.dec();
    }

    /// Asks for a link although there is no call. True where the caller is to connect.
    pub fn want(&self) -> bool {
        self.state().begin_to_connect()
    }

    /// Is there no link, and no attempt to make one?
    pub fn is_down(&self) -> bool {
        matches!(self.state().phase, Phase::Down)
    }

    /// Is the link up?
    pub fn is_up(&self) -> bool {
        matches!(self.state().phase, Phase::Up(_))
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
        state.phase = Phase::Up(connection);
        state.unreachable = false;
        state.write_later();
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
        if state.link != link || !matches!(state.phase, Phase::Up(_)) {
            return None;
        }
        while let Some(waiting) = state.waiting.pop_front() {
            let kind = state.frame_of(&waiting, self.limits.window);
            if kind.is_some() {
                return kind;
            }
        }
        None
    }

    /// Takes a frame of the peer. False for a frame that no node sends.
    pub(crate) fn take(&self, kind: Kind) -> bool {
        match kind {
            Kind::Reply(reply) => self.change(reply.id, |call| call.add_reply(reply, &self.limits)),
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
        state.unreachable |= matches!(state.phase, Phase::Connecting);
        let next = if again { Phase::Connecting } else { Phase::Down };
        let phase = mem::replace(&mut state.phase, next);
        state.link += 1;
        state.waiting.clear();
        state.waiting_bytes = 0;
        let wakers: Vec<_> = state.calls.values_mut().filter_map(OutgoingCall::lose_link).collect();
        drop(state);
        // Not under the lock.
        drop(phase);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn finish(&self, id: u64, result: Result<(), CallError>) -> bool {
        self.change(id, |call| {
            call.finish(result);
            Change::Wake
        })
    }

    /// Changes a call and wakes its caller. A call that is not there was dropped by its
    /// caller; the peer is about to be told.
    fn change(&self, id: u64, change: impl FnOnce(&mut OutgoingCall) -> Change) -> bool {
        let mut state = self.state();
        let Some(call) = state.calls.get_mut(&id) else { return true };
        // The peer was sent no such call.
        if call.is_waiting() {
            return false;
        }
        // Its other pieces are of no use if the call is over.
        let unsent = call.unsent_pieces_bytes();
        let change = change(call);
        let is_over = call.has_ended();
        let credits = call.owes_credit(self.limits.window);
        let waker = match change {
            Change::Malformed => return false,
            Change::None => None,
            Change::Wake | Change::Cancel => call.take_waker(),
        };
        if is_over {
            state.waiting_bytes -= unsent;
        }
        if matches!(change, Change::Cancel) {
            state.waiting.push_back(Waiting::Cancel(id));
            state.write_later();
        } else if credits {
            state.waiting.push_back(Waiting::Credit(id));
            state.write_later();
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

impl State {
    /// True where the caller is to connect.
    fn begin_to_connect(&mut self) -> bool {
        let connect = matches!(self.phase, Phase::Down);
        if connect {
            self.phase = Phase::Connecting;
        }
        connect
    }

    /// What to write; `None` if it is of no use any more.
    fn frame_of(&mut self, waiting: &Waiting, window: u32) -> Option<Kind> {
        Some(match *waiting {
            Waiting::Cancel(id) => Kind::Cancel(id),
            Waiting::Credit(id) => {
                Kind::Credit(Credit { id, more: self.calls.get_mut(&id)?.take_credit() })
            }
            Waiting::Open(id) => {
                let piece = self.calls.get_mut(&id)?.next_piece(id, window)?;
                self.waiting_bytes -= piece.bytes;
                if piece.has_more {
                    // At the end: other calls have their turn between two pieces.
                    self.waiting.push_back(Waiting::Open(id));
                }
                piece.frame
            }
        })
    }

    /// Has the connection write what waits, at the end of this tick.
    fn write_later(&self) {
        if let Phase::Up(connection) = &self.phase {
            tick::defer(connection);
        }
    }
}

#[cfg(test)]
mod tests;
