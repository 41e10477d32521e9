//! One call at its caller: the part that was sent, and the replies that the caller has not taken.

use std::collections::VecDeque;
use std::mem;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::assembly::{Assembly, First, Next};
use crate::frame::{self, Kind, Open, Piece, Reply};
use crate::{CallError, Limits, metrics};

/// One call at its caller.
pub(crate) struct OutgoingCall {
    progress: Progress,
    /// The replies that have arrived; at most a window of frames.
    replies: VecDeque<Arrived>,
    /// The reply that is arriving in pieces.
    assembly: Option<Assembly>,
    /// The frames of the arriving reply that count against the window.
    assembling: u32,
    /// All frames that count against the window: those of `replies` and `assembling`.
    kept: u32,
    /// The frames that were taken and not credited yet.
    taken: u32,
    /// Whether a credit frame is queued for the link.
    crediting: bool,
    waker: Option<Waker>,
}

/// A reply that its caller has not taken.
struct Arrived {
    body: Bytes,
    /// The frames that are credited when the reply is taken.
    frames: u32,
}

/// The part of a call that was sent.
enum Progress {
    /// No byte was written to the socket.
    Waiting(Bytes),
    /// Pieces were written to the socket; these bytes remain. The callee does not start a call that
    /// it has not received completely.
    Sending(Bytes),
    /// All bytes were written to the socket: the callee may have started the call.
    Sent,
    /// The call has ended; no reply follows.
    Over(Result<(), CallError>),
}

/// The consequence of a frame that arrived for a call.
pub(crate) enum Change {
    /// None for the caller.
    None,
    /// The caller can take a reply or the end.
    Wake,
    /// As `Wake`; the call is also cancelled at the callee.
    Cancel,
    /// No node sends this.
    Malformed,
}

/// The cleanup for a call that its caller drops.
pub(crate) enum Left {
    /// No byte was sent to the callee. These bytes no longer wait.
    Unsent { bytes: usize },
    /// The call is to be cancelled at the callee. These bytes no longer wait.
    Begun { bytes: usize },
    /// None: the call had ended.
    Over,
}

impl OutgoingCall {
    /// Creates a call of which no byte was sent.
    pub(crate) fn new(body: Bytes) -> Self {
        Self {
            progress: Progress::Waiting(body),
            replies: VecDeque::new(),
            assembly: None,
            assembling: 0,
            kept: 0,
            taken: 0,
            crediting: false,
            waker: None,
        }
    }

    /// The next reply that has arrived.
    pub(crate) fn take_reply(&mut self) -> Option<Bytes> {
        let reply = self.replies.pop_front()?;
        let mut frames = reply.frames;
        if self.replies.is_empty() {
            frames += mem::take(&mut self.assembling);
        }
        self.credits(frames);
        Some(reply.body)
    }

    /// Polls for the end of the call. Call it when no reply is left. An error is returned once.
    pub(crate) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Option<CallError>> {
        match &mut self.progress {
            Progress::Over(result) => Poll::Ready(mem::replace(result, Ok(())).err()),
            Progress::Waiting(_) | Progress::Sending(_) | Progress::Sent => {
                if !self.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                    self.waker = Some(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Whether the call is known to have no further replies.
    pub(crate) fn is_over(&self) -> bool {
        self.replies.is_empty() && matches!(self.progress, Progress::Over(Ok(())))
    }

    /// Whether no byte of the call was sent yet.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.progress, Progress::Waiting(_))
    }

    /// The cleanup when the caller drops the call.
    pub(crate) fn left(&self) -> Left {
        match &self.progress {
            Progress::Waiting(body) => Left::Unsent { bytes: body.len() },
            Progress::Sending(rest) => Left::Begun { bytes: rest.len() },
            Progress::Sent => Left::Begun { bytes: 0 },
            Progress::Over(_) => Left::Over,
        }
    }

    /// The unsent bytes of a call that is partly sent.
    pub(crate) fn unsent_pieces_bytes(&self) -> usize {
        match &self.progress {
            Progress::Sending(rest) => rest.len(),
            Progress::Waiting(_) | Progress::Sent | Progress::Over(_) => 0,
        }
    }

    /// The next piece of the call, and whether another piece follows. `None` if the call was
    /// refused before all of it was written.
    pub(crate) fn next_piece(&mut self, id: u64, window: u32) -> Option<SentPiece> {
        let (mut body, begins) = match mem::replace(&mut self.progress, Progress::Sent) {
            Progress::Waiting(body) => (body, true),
            Progress::Sending(body) => (body, false),
            over => {
                self.progress = over;
                return None;
            }
        };
        let (piece, rest) = frame::split_piece(&mut body);
        let bytes = piece.len();
        let has_more = rest > 0;
        if has_more {
            self.progress = Progress::Sending(body);
        }
        let frame = if begins {
            Kind::Open(Open { id, window, body: piece, rest })
        } else {
            Kind::OpenMore(Piece { id, body: piece, rest })
        };
        Some(SentPiece { frame, bytes, has_more })
    }

    /// Adds a reply, or a piece of one.
    pub(crate) fn add_reply(&mut self, reply: Reply, limits: &Limits) -> Change {
        let Reply { body, last, rest, .. } = reply;
        // The cancellation has not reached the callee yet.
        if self.has_ended() {
            return Change::None;
        }
        // An honest peer never exceeds its credit.
        if self.kept >= limits.window {
            return Change::Malformed;
        }
        self.kept += 1;
        let whole = match self.assembly.take() {
            None => match Assembly::begin_message(body, rest, limits.message_bytes) {
                First::Whole(body) => body,
                First::Begun(assembly) => return self.assembles(assembly),
                First::TooLarge => {
                    let bytes_max = limits.message_bytes as u64;
                    self.finish(Err(CallError::TooLarge { bytes_max }));
                    return Change::Cancel;
                }
            },
            Some(mut assembly) => match assembly.add(&body, rest) {
                Next::More => return self.assembles(assembly),
                Next::Whole(body) => body,
                Next::Malformed => return Change::Malformed,
            },
        };
        let frames = mem::take(&mut self.assembling) + 1;
        self.replies.push_back(Arrived { body: whole, frames });
        if last {
            self.finish(Ok(()));
        }
        Change::Wake
    }

    /// Ends the call, unless it has ended. Replies that have arrived can still be taken.
    pub(crate) fn finish(&mut self, result: Result<(), CallError>) {
        if !self.has_ended() {
            self.progress = Progress::Over(result);
            metrics::count_outcome(result.into());
        }
    }

    /// Ends the call: the link broke. A call that was sent completely may have started at the
    /// callee, any other call has not. Returns the waker of its caller.
    pub(crate) fn lose_link(&mut self) -> Option<Waker> {
        let error = match self.progress {
            Progress::Waiting(_) | Progress::Sending(_) => CallError::NotStarted,
            Progress::Sent => CallError::Lost,
            Progress::Over(_) => return None,
        };
        self.finish(Err(error));
        self.waker.take()
    }

    /// The waker of the waiting caller.
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    /// Whether the call has ended, so that no further reply arrives.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.progress, Progress::Over(_))
    }

    /// Whether credit is to be sent now. Credit is sent for half a window at once: this takes fewer
    /// frames, and the callee never has to stop. The credit then waits for the link until
    /// [`OutgoingCall::take_credit`].
    pub(crate) fn owes_credit(&mut self, window: u32) -> bool {
        let owes = !self.has_ended() && !self.crediting && self.taken >= window.div_ceil(2);
        self.crediting |= owes;
        owes
    }

    /// The credit to send.
    pub(crate) fn take_credit(&mut self) -> u32 {
        self.crediting = false;
        mem::take(&mut self.taken)
    }

    /// Keeps a reply that has not arrived completely. If the caller has no other reply to take, its
    /// pieces are credited as they arrive: the caller waits for the whole reply.
    fn assembles(&mut self, assembly: Assembly) -> Change {
        self.assembly = Some(assembly);
        self.assembling += 1;
        if self.replies.is_empty() {
            let frames = mem::take(&mut self.assembling);
            self.credits(frames);
        }
        Change::None
    }

    fn credits(&mut self, frames: u32) {
        self.kept -= frames;
        self.taken += frames;
    }
}

/// A piece of a call that is about to be written.
pub(crate) struct SentPiece {
    pub(crate) frame: Kind,
    /// The bytes of the call in this piece.
    pub(crate) bytes: usize,
    /// Whether another piece follows.
    pub(crate) has_more: bool,
}
