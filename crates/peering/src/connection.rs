//! A connection between two nodes after their handshake: frames in, frames out, heartbeats.
//!
//! One task per connection reads from the socket. Frames are written by the thread that produces
//! them, at the end of its event-loop tick ([`tick`]), so that no other thread is woken. That thread
//! also encrypts them, all frames of a tick together. The task writes only if the socket's buffer is
//! full, if a tick has many bytes to write, or if it decrypts when another thread has frames. One
//! thread writes at a time, and no thread waits for it: a thread that finds another one writing marks
//! the state, and the writer then collects frames once more.

use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use futures_util::task::AtomicWaker;
use tick::Deferred;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::frame::{Bye, Frame, Kind};
use crate::inbox::Inbox;
use crate::wire::{Outgoing, Wire, Written};

/// Frames are collected into one write of up to this many bytes; a larger frame is written whole.
const ENOUGH_BYTES: usize = 64 << 10;

/// The largest buffer that is kept for the next write, in bytes.
const KEPT_BYTES: usize = 2 * ENOUGH_BYTES;

/// The number of frames that are read before the task yields.
const TAKEN_IN_A_ROW: usize = 64;

/// The number of bytes that are read before the task yields: one frame of a long message.
const READ_IN_A_ROW: usize = 64 << 10;

/// The most rounds of collecting and writing in one tick, if other threads add frames meanwhile.
const WRITTEN_IN_A_ROW: usize = 4;

/// No further round follows in a tick once so many bytes were written: to write them takes about 0.1 ms.
const BYTES_WRITTEN_IN_A_ROW: usize = 64 << 10;

/// What reads and writes the frames of a connection: the calls of one end.
pub(crate) trait FrameHandler: Send + Sync + 'static {
    /// Handles a frame of the other end. Returns `false` for a frame that no node sends; the
    /// connection is then closed.
    fn handle_frame(&self, kind: Kind) -> bool;

    /// Appends frames to `out` until none is left or `out` has `enough_bytes`.
    fn write_frames(&self, out: &mut BytesMut, enough_bytes: usize);
}

/// The timing by which each end detects that the other is gone.
#[derive(Clone, Copy)]
pub(crate) struct Heartbeat {
    /// The interval of pings from the calling end. The called end answers each with a pong. While a
    /// long message arrives it also sends pongs at this interval, since the next ping is queued
    /// behind that message.
    pub(crate) every: Duration,
    /// Whether this is the calling end.
    pub(crate) pings: bool,
    /// The other end counts as gone if no byte arrives for this long.
    pub(crate) silence: Duration,
}

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The other end sent a goodbye.
    #[error("the other end sent a goodbye")]
    Goodbye,
    /// The other end closed it without a goodbye.
    #[error("the other end closed the connection without a goodbye")]
    Closed,
    /// No byte arrived for too long.
    #[error("no byte arrived from the other end for too long")]
    Silent,
    /// The other end sent bytes that no node sends.
    #[error("the other end sent invalid bytes")]
    Malformed,
    /// The connection broke, or a panic occurred while this end collected frames.
    #[error("{0}")]
    Broken(io::Error),
}

/// One end of a connection.
pub(crate) struct PeerConnection<P> {
    handler: P,
    /// The write half of the connection, for any thread.
    outgoing: Outgoing,
    out: Mutex<Outbound>,
    task: AtomicWaker,
}

/// The pending output of a connection.
#[derive(Default)]
struct Outbound {
    writer: WriterState,
    /// Bytes that the socket's buffer could not take. The writing thread takes them.
    unwritten: BytesMut,
    ping: bool,
    pong: bool,
    /// Whether a goodbye is to be written, as the last frame.
    bye: bool,
    /// Whether the goodbye was written.
    is_over: bool,
}

/// The state of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum WriterState {
    /// No thread writes; the next thread with frames may.
    #[default]
    Free,
    /// One thread writes. `again`: another thread had frames meanwhile.
    Writing { again: bool },
    /// The socket's buffer is full; the task waits until it is writable.
    Full,
    /// Writing has ended. Bytes that have arrived are still read, and the reader gets the cause of
    /// the end.
    Closed,
    /// Writing has ended: collecting the frames panicked.
    Panicked,
}

impl<P: FrameHandler> PeerConnection<P> {
    pub(crate) fn new(handler: P, wire: &Wire) -> Self {
        let (out, task) = (Mutex::default(), AtomicWaker::new());
        Self { handler, outgoing: wire.outgoing(), out, task }
    }

    pub(crate) fn handler(&self) -> &P {
        &self.handler
    }

    /// Reads and writes until the connection ends.
    pub(crate) fn run<'a>(
        &'a self,
        wire: &'a mut Wire,
        inbox: &'a mut Inbox,
        heartbeat: Heartbeat,
    ) -> RunningConnection<'a, P> {
        let now = Instant::now();
        let wakes = Box::pin(sleep_until(now));
        RunningConnection {
            connection: self,
            wire,
            inbox,
            heartbeat,
            last_read: now,
            last_ping: now,
            wakes,
        }
    }

    /// Writes a goodbye as the last frame. The other end then closes the connection.
    pub(crate) fn send_goodbye(&self) {
        self.out().bye = true;
        self.perform();
    }

    fn handle_frame(&self, frame: Frame) -> Option<Ended> {
        match frame.kind {
            // A newer node may send an unknown kind of frame.
            None | Some(Kind::Pong(())) => None,
            Some(Kind::Ping(())) => {
                self.out().pong = true;
                None
            }
            Some(Kind::Bye(_)) => Some(Ended::Goodbye),
            Some(kind) => (!self.handler.handle_frame(kind)).then_some(Ended::Malformed),
        }
    }

    /// Begins to write and returns the unwritten bytes. `None` while another thread writes, which
    /// then collects again, and while the socket's buffer is full.
    fn begin_write(&self) -> Option<BytesMut> {
        let mut out = self.out();
        match &mut out.writer {
            WriterState::Free => {
                out.writer = WriterState::Writing { again: false };
                return Some(mem::take(&mut out.unwritten));
            }
            WriterState::Writing { again } => *again = true,
            WriterState::Full | WriterState::Closed | WriterState::Panicked => {}
        }
        None
    }

    /// Ends writing: no frames are left. Returns the buffer if another thread had frames meanwhile,
    /// which must be collected.
    fn end_write(&self, room: BytesMut) -> Option<BytesMut> {
        let mut out = self.out();
        if out.writer == (WriterState::Writing { again: true }) {
            out.writer = WriterState::Writing { again: false };
            return Some(room);
        }
        out.writer = WriterState::Free;
        out.keep_buffer(room);
        None
    }

    /// Ends writing with unwritten bytes left.
    fn stop_write(&self, unwritten: BytesMut, writer: WriterState) {
        let mut out = self.out();
        out.keep_buffer(unwritten);
        out.writer = writer;
    }

    /// Ends writing for good.
    fn close_writer(&self) {
        self.out().writer =
            if std::thread::panicking() { WriterState::Panicked } else { WriterState::Closed };
        self.task.wake();
    }

    /// Appends the frames that are to be written. Only the writing thread calls this.
    fn collect_frames(&self, bytes: &mut BytesMut) {
        let mut out = self.out();
        if out.is_over {
            return;
        }
        let (ping, pong, bye) = (mem::take(&mut out.ping), mem::take(&mut out.pong), out.bye);
        out.is_over = bye;
        drop(out);
        if ping {
            Kind::Ping(()).write_to(bytes);
        }
        if pong {
            Kind::Pong(()).write_to(bytes);
        }
        self.handler.write_frames(bytes, ENOUGH_BYTES);
        if bye {
            Kind::Bye(Bye::default()).write_to(bytes);
        }
    }

    /// Collects and writes frames. Returns whether bytes or frames are left.
    fn write(&self) -> bool {
        let Some(mut bytes) = self.begin_write() else { return false };
        let writing = Writing(self);
        let mut written_bytes = 0;
        for _ in 0..WRITTEN_IN_A_ROW {
            if written_bytes >= BYTES_WRITTEN_IN_A_ROW {
                break;
            }
            self.collect_frames(&mut bytes);
            if bytes.is_empty() {
                match self.outgoing.try_flush() {
                    Ok(true) => {}
                    Ok(false) => {
                        self.stop_write(bytes, WriterState::Full);
                        return writing.finish(true);
                    }
                    Err(_) => return false,
                }
                match self.end_write(bytes) {
                    None => return writing.finish(false),
                    Some(room) => bytes = room,
                }
                continue;
            }
            while !bytes.is_empty() {
                match self.outgoing.try_write(&bytes) {
                    Ok(Written::Bytes(written)) => {
                        bytes.advance(written);
                        written_bytes += written;
                    }
                    Ok(Written::Full) => {
                        self.stop_write(bytes, WriterState::Full);
                        return writing.finish(true);
                    }
                    Ok(Written::Busy) => {
                        self.stop_write(bytes, WriterState::Free);
                        return writing.finish(true);
                    }
                    // The reader gets the cause of the end.
                    Err(_) => return false,
                }
            }
        }
        self.stop_write(bytes, WriterState::Free);
        writing.finish(true)
    }

    fn out(&self) -> MutexGuard<'_, Outbound> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: FrameHandler> Deferred for PeerConnection<P> {
    fn perform(&self) {
        if self.write() {
            self.task.wake();
        }
    }

    fn perform_elsewhere(&self) {
        self.task.wake();
    }
}

impl Outbound {
    /// Keeps the unwritten bytes, or else the buffer for the next write, unless it is large.
    fn keep_buffer(&mut self, mut unwritten: BytesMut) {
        // The written part of the buffer can be used again; `capacity` does not count it.
        if !unwritten.is_empty() || !unwritten.try_reclaim(KEPT_BYTES + 1) {
            self.unwritten = unwritten;
        }
    }
}

/// Guards a thread that writes. If writing ends by an error or a panic, no further byte is written.
struct Writing<'a, P: FrameHandler>(&'a PeerConnection<P>);

impl<P: FrameHandler> Writing<'_, P> {
    fn finish<T>(self, result: T) -> T {
        mem::forget(self);
        result
    }
}

impl<P: FrameHandler> Drop for Writing<'_, P> {
    fn drop(&mut self) {
        self.0.close_writer();
    }
}

/// The future that reads and writes a connection. Its output is the reason why it ended.
pub(crate) struct RunningConnection<'a, P> {
    connection: &'a PeerConnection<P>,
    wire: &'a mut Wire,
    inbox: &'a mut Inbox,
    heartbeat: Heartbeat,
    last_read: Instant,
    /// When the last ping, or the last unrequested pong, was due.
    last_ping: Instant,
    wakes: Pin<Box<Sleep>>,
}

impl<P: FrameHandler> RunningConnection<'_, P> {
    /// Reads and handles frames.
    fn read_frames(&mut self, context: &mut Context<'_>) -> Result<(), Ended> {
        let (mut read, mut taken) = (0, 0);
        let listened = loop {
            match self.inbox.next() {
                Ok(Some(frame)) => {
                    if let Some(ended) = self.connection.handle_frame(frame) {
                        break Err(ended);
                    }
                    taken += 1;
                    if taken == TAKEN_IN_A_ROW {
                        // More frames may wait: yields to other tasks first.
                        context.waker().wake_by_ref();
                        break Ok(());
                    }
                    continue;
                }
                Ok(None) => {}
                Err(_) => break Err(Ended::Malformed),
            }
            if read >= READ_IN_A_ROW {
                context.waker().wake_by_ref();
                break Ok(());
            }
            match self.inbox.poll_fill(self.wire, context) {
                Poll::Pending => break Ok(()),
                Poll::Ready(Ok(0)) => break Err(Ended::Closed),
                Poll::Ready(Ok(length)) => read += length,
                Poll::Ready(Err(error)) => break Err(Ended::Broken(error)),
            }
        };
        if read > 0 || taken > 0 {
            self.last_read = Instant::now();
            if !self.heartbeat.pings && self.last_ping + self.heartbeat.every <= self.last_read {
                self.last_ping = self.last_read;
                self.connection.out().pong = true;
            }
        }
        listened
    }

    /// Sends a ping when one is due, and ends a connection on which no byte arrives. Bytes that
    /// arrived while this process was suspended have been read before this check.
    fn check_heartbeat(&mut self, context: &mut Context<'_>) -> Result<(), Ended> {
        while self.wakes.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            if self.heartbeat.pings && self.last_ping + self.heartbeat.every <= now {
                self.last_ping = now;
                self.connection.out().ping = true;
            }
            let silent = self.last_read + self.heartbeat.silence;
            if silent <= now {
                return Err(Ended::Silent);
            }
            let pings =
                if self.heartbeat.pings { self.last_ping + self.heartbeat.every } else { silent };
            self.wakes.as_mut().reset(silent.min(pings));
        }
        Ok(())
    }

    /// Writes the frames that no other thread writes.
    fn flush(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        loop {
            let writer = self.connection.out().writer;
            match writer {
                WriterState::Panicked => {
                    return Err(io::Error::other("a panic while frames were written"));
                }
                WriterState::Full => match self.connection.outgoing.poll_room(context)? {
                    Poll::Pending => return Ok(()),
                    Poll::Ready(()) => self.connection.out().writer = WriterState::Free,
                },
                WriterState::Free | WriterState::Writing { .. } | WriterState::Closed => {}
            }
            if !self.connection.write() {
                return Ok(());
            }
            if self.connection.out().writer != WriterState::Full {
                // More frames may wait: yields to other tasks first.
                context.waker().wake_by_ref();
                return Ok(());
            }
        }
    }

    fn poll_connection(&mut self, context: &mut Context<'_>) -> Result<(), Ended> {
        self.connection.task.register(context.waker());
        self.read_frames(context)?;
        self.check_heartbeat(context)?;
        self.flush(context).map_err(Ended::Broken)
    }
}

impl<P: FrameHandler> Future for RunningConnection<'_, P> {
    type Output = Ended;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        match self.get_mut().poll_connection(context) {
            Ok(()) => Poll::Pending,
            Err(ended) => Poll::Ready(ended),
        }
    }
}

#[cfg(test)]
mod tests;
