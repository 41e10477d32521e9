//! One call, at its caller: how much of it was sent, and the replies that were not taken.

use std::collections::VecDeque;
use std::mem;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::assembly::{Assembly, First, Next};
use crate::frame::{self, Kind, Open, Piece, Reply};
use crate::{CallError, Limits, metrics};

/// One call.
pub(crate) struct OutgoingCall {
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

/// How much of a call was sent.
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

/// What follows from what arrived for a call.
pub(crate) enum Change {
    /// Nothing for its caller.
    None,
    /// Its caller has something to take.
    Wake,
    /// As `Wake`, and the callee is to stop.
    Cancel,
    /// No node sends this.
    Malformed,
}

/// What its caller leaves behind when it drops a call.
pub(crate) enum Left {
    /// The callee was sent nothing. These bytes wait no more.
    Unsent { bytes: usize },
    /// The callee is to be told. These bytes wait no more.
    Begun { bytes: usize },
    /// Nothing: it was over.
    Over,
}

impl OutgoingCall {
    /// A call of which nothing was sent.
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

    /// How the call ended; call it when no reply is left. The error is yielded once.
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

    /// Is nothing more to be taken, as far as is known?
    pub(crate) fn is_over(&self) -> bool {
        self.replies.is_empty() && matches!(self.progress, Progress::Over(Ok(())))
    }

    /// Was nothing of it sent yet?
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.progress, Progress::Waiting(_))
    }

    /// What is to be done when its caller is gone.
    pub(crate) fn left(&self) -> Left {
        match &self.progress {
            Progress::Waiting(body) => Left::Unsent { bytes: body.len() },
            Progress::Sending(rest) => Left::Begun { bytes: rest.len() },
            Progress::Sent => Left::Begun { bytes: 0 },
            Progress::Over(_) => Left::Over,
        }
    }

    /// The bytes that a call has which is sent in pieces and not whole.
    pub(crate) fn unsent_pieces_bytes(&self) -> usize {
        match &self.progress {
            Progress::Sending(rest) => rest.len(),
            Progress::Waiting(_) | Progress::Sent | Progress::Over(_) => 0,
        }
    }

    /// The call, or the next piece of it, and whether another piece is left. `None` where the call
    /// was refused before all of it was written.
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

    /// Takes a reply, or a piece of one.
    pub(crate) fn add_reply(&mut self, reply: Reply, limits: &Limits) -> Change {
        let Reply { body, last, rest, .. } = reply;
        // Its callee has not learnt yet that it was cancelled.
        if self.has_ended() {
            return Change::None;
        }
        // No honest peer sends more than it was given credit for.
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

    /// The link broke. A call that was handed to it completely may have begun; any other call has
    /// not. Answers with the waker of its caller.
    pub(crate) fn lose_link(&mut self) -> Option<Waker> {
        let error = match self.progress {
            Progress::Waiting(_) | Progress::Sending(_) => CallError::NotStarted,
            Progress::Sent => CallError::Lost,
            Progress::Over(_) => return None,
        };
        self.finish(Err(error));
        self.waker.take()
    }

    /// The waker of a caller that waits.
    pub(crate) fn take_waker(&mut self) -> Option<Waker> {
        self.waker.take()
    }

    /// Will nothing more arrive?
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.progress, Progress::Over(_))
    }

    /// Is credit to be given now? Half a window at once: fewer frames, and the callee never
    /// has to stop. Then it waits for the link until [`OutgoingCall::take_credit`].
    pub(crate) fn owes_credit(&mut self, window: u32) -> bool {
        let owes = !self.has_ended() && !self.crediting && self.taken >= window.div_ceil(2);
        self.crediting |= owes;
        owes
    }

    /// The credit that is given.
    pub(crate) fn take_credit(&mut self) -> u32 {
        self.crediting = false;
        mem::take(&mut self.taken)
    }

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

    fn credits(&mut self, frames: u32) {
        self.kept -= frames;
        self.taken += frames;
    }
}

/// A piece of a call that is about to be written.
pub(crate) struct SentPiece {
    pub(crate) frame: Kind,
    /// Bytes of the call in it.
    pub(crate) bytes: usize,
    /// The call has another piece.
    pub(crate) has_more: bool,
}
