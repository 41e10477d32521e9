//! The calls of one node to another, across all links between the two.
//!
//! Three tasks use this module: callers make and drop calls and take replies; the connection's
//! writer takes frames to write; its reader passes on the frames of the peer. None of them waits
//! for another. [`Calls::link_broke`] decides which calls may be made again.

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
    /// Whether the last attempt to connect failed.
    unreachable: bool,
    /// The number of the current link to the peer. The connection of an earlier link gets no
    /// frames.
    link: u64,
    /// The id of the next call. Ids are not reused after a link breaks.
    next: u64,
    calls: HashMap<u64, OutgoingCall>,
    /// The frames that wait for the link: for each call at most an opening, a credit and a
    /// cancellation.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
}

/// The state of the link.
#[derive(Default)]
enum Phase {
    /// No link is established, and no attempt is in progress.
    #[default]
    Down,
    /// An attempt to connect is in progress; calls wait.
    Connecting,
    /// Calls are written to this connection.
    Up(Arc<dyn Deferred>),
}

/// A frame to be written.
enum Waiting {
    /// An opening: the call, or its next piece.
    Open(u64),
    Credit(u64),
    Cancel(u64),
}

impl Calls {
    /// Creates the calls to a peer without a link.
    pub fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Makes a call. At a bound it fails and the call is not started. Returns the id of the call,
    /// and whether this caller must start to connect to the peer.
    pub fn open(&self, body: Bytes) -> Result<(u64, bool), CallError> {
        self.try_open(body).inspect_err(|error| metrics::count_outcome((*error).into()))
    }

    fn try_open(&self, body: Bytes) -> Result<(u64, bool), CallError> {
        if body.len() > self.limits.message_bytes {
            return Err(CallError::TooLarge { bytes_max: self.limits.message_bytes as u64 });
        }
        let mut state = self.state();
        // Each dropped call leaves at most a cancellation in the queue. A link that is slow to
        // write those gets no further calls.
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

    /// Polls for the next reply of a call; `None` after the last.
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

    /// Whether a call is known to have no further replies.
    pub fn is_over(&self, id: u64) -> bool {
        self.state().calls.get(&id).is_none_or(OutgoingCall::is_over)
    }

    /// Drops a call: its caller is gone.
    pub fn forget(&self, id: u64) {
        let mut state = self.state();
        let Some(call) = state.calls.remove(&id) else { return };
        match call.left() {
            // The queued opening stays; the writer skips it.
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

    /// Requests a link without a call. Returns whether this caller must start to connect.
    pub fn request_link(&self) -> bool {
        self.state().begin_to_connect()
    }

    /// Whether no link is established and no attempt to connect is in progress.
    pub fn is_down(&self) -> bool {
        matches!(self.state().phase, Phase::Down)
    }

    /// Whether the link is established.
    pub fn is_up(&self) -> bool {
        matches!(self.state().phase, Phase::Up(_))
    }

    /// Whether the last attempt to connect failed.
    pub fn is_unreachable(&self) -> bool {
        self.state().unreachable
    }

    /// The number of the current link, for [`Calls::write_frames`].
    pub(crate) fn link(&self) -> u64 {
        self.state().link
    }

    /// Records an established link: calls are written to it from now on.
    pub(crate) fn up(&self, connection: Arc<dyn Deferred>) {
        let mut state = self.state();
        state.phase = Phase::Up(connection);
        state.unreachable = false;
        state.write_later();
    }

    /// Appends frames to `out` until none is left or `out` has `enough_bytes`. From here on a call
    /// counts as sent: bytes of it may reach the peer. Appends no frame if `link` is not the
    /// current link.
    pub(crate) fn write_frames(&self, link: u64, out: &mut BytesMut, enough_bytes: usize) {
        while out.len() < enough_bytes
            && let Some(kind) = self.next(link)
        {
            // Copied without the lock, so that other threads can make calls meanwhile.
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

    /// Handles a frame of the peer. Returns `false` for a frame that no node sends.
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

    /// Records that the link broke or that the attempt to connect failed. A call that was sent
    /// completely may have started, any other call has not. `again`: a further attempt follows.
    pub fn link_broke(&self, again: bool) {
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

    /// Changes a call and wakes its caller. An unknown call was dropped by its caller; its
    /// cancellation is queued.
    fn change(&self, id: u64, change: impl FnOnce(&mut OutgoingCall) -> Change) -> bool {
        let mut state = self.state();
        let Some(call) = state.calls.get_mut(&id) else { return true };
        // The peer has not been sent this call yet.
        if call.is_waiting() {
            return false;
        }
        // If the call has ended, its remaining pieces are not sent.
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
    /// Returns whether the caller must start to connect.
    fn begin_to_connect(&mut self) -> bool {
        let connect = matches!(self.phase, Phase::Down);
        if connect {
            self.phase = Phase::Connecting;
        }
        connect
    }

    /// The frame to write; `None` if it is no longer needed.
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
                    // Queued at the end: other calls are written between two pieces.
                    self.waiting.push_back(Waiting::Open(id));
                }
                piece.frame
            }
        })
    }

    /// Schedules a write of the waiting frames at the end of this tick.
    fn write_later(&self) {
        if let Phase::Up(connection) = &self.phase {
            tick::defer(connection);
        }
    }
}

#[cfg(test)]
mod tests;
