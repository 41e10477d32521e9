//! A connection between two nodes that know each other: frames in, frames out, and whether
//! the other end is still there.
//!
//! A task of its own reads the line. What is to be said is written by whoever has it, when
//! its turn ends ([`crate::flush_queue`]), so that no other thread is woken for that; only where
//! there is no room, or where the line is encrypted, does the task write. Nobody waits for
//! the one who writes: whoever comes meanwhile leaves what it has to it, and it looks again.

use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures_util::task::AtomicWaker;
use tokio::io::AsyncWrite;
use tokio::time::{Instant, Sleep, sleep_until};

use super::frame::{Bye, Frame, Kind};
use super::inbox::Inbox;
use super::wire::{Outgoing, Wire};
use crate::flush_queue::Flush;

/// So much is put together to be written at once, in bytes; a frame that is larger goes whole.
const ENOUGH_BYTES: usize = 64 << 10;

/// Room that is kept for what is said next, in bytes.
const KEPT_BYTES: usize = 2 * ENOUGH_BYTES;

/// So many frames are taken before others have their turn.
const TAKEN_IN_A_ROW: usize = 64;

/// So often a thread writes in one turn what others have to say as well.
const WRITTEN_IN_A_ROW: usize = 4;

/// Whose line it is.
pub(crate) trait Party: Send + Sync + 'static {
    /// Takes what the other end said. False if no node says that.
    fn take(&self, kind: Kind) -> bool;

    /// Appends what there is to say, until there is enough.
    fn say(&self, out: &mut BytesMut, enough_bytes: usize);
}

/// How a line is known to live.
#[derive(Clone, Copy)]
pub(crate) struct Beat {
    /// The caller asks so often whether the other end is there. Who is called says so, and as
    /// often while something arrives that is long, since the next question is behind it.
    pub(crate) every: Duration,
    pub(crate) asks: bool,
    /// Who is silent for so long is gone.
    pub(crate) silence: Duration,
}

/// How a line ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("the other end ended it on purpose")]
    Parted,
    #[error("the other end closed it without a word")]
    Closed,
    #[error("the other end was silent for too long")]
    Silent,
    #[error("the other end said what no node says")]
    Strange,
    #[error("{0}")]
    Broken(io::Error),
}

/// One end of a line.
pub(crate) struct Line<P> {
    party: P,
    /// Where what is said is only to be written.
    outgoing: Option<Arc<Outgoing>>,
    out: Mutex<Out>,
    task: AtomicWaker,
}

/// What is about to be said.
#[derive(Default)]
struct Out {
    pen: Pen,
    /// What there was no room for. Whoever writes has it.
    left: BytesMut,
    ping: bool,
    pong: bool,
    /// The line ends: that is said last.
    bye: bool,
    /// It was said.
    is_over: bool,
}

/// Who may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pen {
    /// Whoever comes.
    #[default]
    Free,
    /// Somebody does. Perhaps somebody else came meanwhile.
    Writing { again: bool },
    /// Nobody until there is room, for which the task waits.
    Stuck,
    /// Nobody any more. What has arrived is still taken, and who reads learns how the line
    /// ended.
    Mute,
    /// Nobody any more: what was to be said panicked.
    Panicked,
}

impl<P: Party> Line<P> {
    pub(crate) fn new(party: P, wire: &Wire) -> Self {
        let (out, task) = (Mutex::default(), AtomicWaker::new());
        Self { party, outgoing: wire.outgoing(), out, task }
    }

    pub(crate) fn party(&self) -> &P {
        &self.party
    }

    /// Carries what is said until the line ends.
    pub(crate) fn run<'a>(
        &'a self,
        wire: &'a mut Wire,
        inbox: &'a mut Inbox,
        beat: Beat,
    ) -> Running<'a, P> {
        let now = Instant::now();
        let wakes = Box::pin(sleep_until(now));
        Running { line: self, wire, inbox, beat, heard: now, beaten: now, wakes }
    }

    /// Says that the line ends. The other end then closes it.
    pub(crate) fn part(&self) {
        self.out().bye = true;
        self.flush();
    }

    fn take(&self, frame: Frame) -> Option<Ended> {
        match frame.kind {
            // It comes from a newer node.
            None | Some(Kind::Pong(())) => None,
            Some(Kind::Ping(())) => {
                self.out().pong = true;
                None
            }
            Some(Kind::Bye(_)) => Some(Ended::Parted),
            Some(kind) => (!self.party.take(kind)).then_some(Ended::Strange),
        }
    }

    /// Begins to write, with what was left. Not while another does, who then looks again,
    /// or while there is no room.
    fn begin(&self) -> Option<BytesMut> {
        let mut out = self.out();
        match &mut out.pen {
            Pen::Free => {
                out.pen = Pen::Writing { again: false };
                return Some(mem::take(&mut out.left));
            }
            Pen::Writing { again } => *again = true,
            Pen::Stuck | Pen::Mute | Pen::Panicked => {}
        }
        None
    }

    /// Ends writing, since there was nothing more to say. Gives the room back if somebody
    /// came meanwhile.
    fn end(&self, room: BytesMut) -> Option<BytesMut> {
        let mut out = self.out();
        if out.pen == (Pen::Writing { again: true }) {
            out.pen = Pen::Writing { again: false };
            return Some(room);
        }
        out.pen = Pen::Free;
        out.keep(room);
        None
    }

    /// Ends writing before all was said.
    fn stop(&self, left: BytesMut, pen: Pen) {
        let mut out = self.out();
        out.keep(left);
        out.pen = pen;
    }

    /// Ends writing for good.
    fn fall_silent(&self) {
        self.out().pen = if std::thread::panicking() { Pen::Panicked } else { Pen::Mute };
        self.task.wake();
    }

    /// Puts together what there is to say. For the one who writes.
    fn gather(&self, bytes: &mut BytesMut) {
        let mut out = self.out();
        if out.is_over {
            return;
        }
        let (ping, pong, bye) = (mem::take(&mut out.ping), mem::take(&mut out.pong), out.bye);
        out.is_over = bye;
        drop(out);
        if ping {
            Kind::Ping(()).say(bytes);
        }
        if pong {
            Kind::Pong(()).say(bytes);
        }
        self.party.say(bytes, ENOUGH_BYTES);
        if bye {
            Kind::Bye(Bye::default()).say(bytes);
        }
    }

    /// Writes what there is to say. True if there is more.
    fn write(&self, outgoing: &Outgoing) -> bool {
        let Some(mut bytes) = self.begin() else { return false };
        let writing = Writing(self);
        for _ in 0..WRITTEN_IN_A_ROW {
            self.gather(&mut bytes);
            if bytes.is_empty() {
                match self.end(bytes) {
                    None => return writing.ended(false),
                    Some(room) => bytes = room,
                }
                continue;
            }
            while !bytes.is_empty() {
                match outgoing.try_write(&bytes) {
                    Ok(Some(written)) => bytes.advance(written),
                    Ok(None) => {
                        self.stop(bytes, Pen::Stuck);
                        return writing.ended(true);
                    }
                    // How the line ended is told to who reads.
                    Err(_) => return false,
                }
            }
        }
        self.stop(bytes, Pen::Free);
        writing.ended(true)
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Party> Flush for Line<P> {
    fn flush(&self) {
        let more = self.outgoing.as_ref().is_none_or(|outgoing| self.write(outgoing));
        if more {
            self.task.wake();
        }
    }

    fn flush_elsewhere(&self) {
        self.task.wake();
    }
}

impl Out {
    /// Keeps what is left, and the room for what comes next, unless that is large.
    fn keep(&mut self, mut left: BytesMut) {
        // What was written is room as well, and not counted by its capacity.
        if !left.is_empty() || !left.try_reclaim(KEPT_BYTES + 1) {
            self.left = left;
        }
    }
}

/// Somebody writes. Where that ends otherwise than meant, nothing is written any more.
struct Writing<'a, P: Party>(&'a Line<P>);

impl<P: Party> Writing<'_, P> {
    fn ended<T>(self, result: T) -> T {
        mem::forget(self);
        result
    }
}

impl<P: Party> Drop for Writing<'_, P> {
    fn drop(&mut self) {
        self.0.fall_silent();
    }
}

/// A line at work. Ends as the line does.
pub(crate) struct Running<'a, P> {
    line: &'a Line<P>,
    wire: &'a mut Wire,
    inbox: &'a mut Inbox,
    beat: Beat,
    heard: Instant,
    /// When it was last asked, or said, whether somebody is there.
    beaten: Instant,
    wakes: Pin<Box<Sleep>>,
}

impl<P: Party> Running<'_, P> {
    /// Takes what has arrived.
    fn listen(&mut self, context: &mut Context<'_>) -> Result<(), Ended> {
        let (mut heard, mut taken) = (false, 0);
        let listened = loop {
            match self.inbox.next() {
                Ok(Some(frame)) => {
                    if let Some(ended) = self.line.take(frame) {
                        break Err(ended);
                    }
                    taken += 1;
                    if taken == TAKEN_IN_A_ROW {
                        // There may be more; the others first.
                        context.waker().wake_by_ref();
                        break Ok(());
                    }
                    continue;
                }
                Ok(None) => {}
                Err(_) => break Err(Ended::Strange),
            }
            match self.inbox.poll_fill(self.wire, context) {
                Poll::Pending => break Ok(()),
                Poll::Ready(Ok(0)) => break Err(Ended::Closed),
                Poll::Ready(Ok(_)) => heard = true,
                Poll::Ready(Err(error)) => break Err(Ended::Broken(error)),
            }
        };
        if heard || taken > 0 {
            self.heard = Instant::now();
            if !self.beat.asks && self.beaten + self.beat.every <= self.heard {
                self.beaten = self.heard;
                self.line.out().pong = true;
            }
        }
        listened
    }

    /// Sees to it that the other end is there. What has arrived while this process stood
    /// still was taken before.
    fn watch(&mut self, context: &mut Context<'_>) -> Result<(), Ended> {
        while self.wakes.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            if self.beat.asks && self.beaten + self.beat.every <= now {
                self.beaten = now;
                self.line.out().ping = true;
            }
            let silent = self.heard + self.beat.silence;
            if silent <= now {
                return Err(Ended::Silent);
            }
            let asks = if self.beat.asks { self.beaten + self.beat.every } else { silent };
            self.wakes.as_mut().reset(silent.min(asks));
        }
        Ok(())
    }

    /// Says what there is to say and nobody else says.
    fn flush(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(outgoing) = &self.line.outgoing else {
            self.flush_encrypted(context);
            return Ok(());
        };
        loop {
            let pen = self.line.out().pen;
            match pen {
                Pen::Panicked => return Err(io::Error::other("what was to be said panicked")),
                Pen::Stuck => match outgoing.poll_room(context)? {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(()) => self.line.out().pen = Pen::Free,
                },
                Pen::Free | Pen::Writing { .. } | Pen::Mute => {}
            }
            if !self.line.write(outgoing) {
                return Ok(());
            }
            if self.line.out().pen != Pen::Stuck {
                // There may be more; the others first.
                context.waker().wake_by_ref();
                return Ok(());
            }
        }
    }

    fn flush_encrypted(&mut self, context: &mut Context<'_>) {
        // Nobody else writes here.
        let Some(mut bytes) = self.line.begin() else { return };
        let writing = Writing(self.line);
        for _ in 0..WRITTEN_IN_A_ROW {
            self.line.gather(&mut bytes);
            if bytes.is_empty() {
                // Not all that was encrypted may have left.
                let flushed = Pin::new(&mut *self.wire).poll_flush(context);
                if !matches!(flushed, Poll::Ready(Err(_))) {
                    self.line.stop(bytes, Pen::Free);
                    writing.ended(());
                }
                return;
            }
            while !bytes.is_empty() {
                match Pin::new(&mut *self.wire).poll_write(context, &bytes) {
                    Poll::Ready(Ok(written)) => bytes.advance(written),
                    Poll::Ready(Err(_)) => return,
                    Poll::Pending => {
                        self.line.stop(bytes, Pen::Free);
                        return writing.ended(());
                    }
                }
            }
        }
        self.line.stop(bytes, Pen::Free);
        writing.ended(());
        // There may be more; the others first.
        context.waker().wake_by_ref();
    }

    fn go_on(&mut self, context: &mut Context<'_>) -> Result<(), Ended> {
        self.line.task.register(context.waker());
        self.listen(context)?;
        self.watch(context)?;
        self.flush(context).map_err(Ended::Broken)
    }
}

impl<P: Party> Future for Running<'_, P> {
    type Output = Ended;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        match self.get_mut().go_on(context) {
            Ok(()) => Poll::Pending,
            Err(ended) => Poll::Ready(ended),
        }
    }
}

#[cfg(test)]
mod tests;
