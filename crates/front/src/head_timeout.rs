//! Bounds the time that each request's head may take to arrive, and passes on one request at a time.
//!
//! [`Timed`] wraps the socket and times each head from its first byte, and a new connection until that
//! byte. The HTTP layer does not: it would time the first head from the connect, and a client that is
//! busy between its connect and its request would lose the request. `Timed` also holds back what is
//! beyond the end of the request that is served. [`HeadProgress`], which both share, records what is due. A head that
//! arrives whole in one read needs no timer. A connection that waits for a request can be closed from
//! outside, and its holder is the tenant that it counts for then.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use actix_http::Request;
use actix_http::body::{BodySize, MessageBody};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::framing::{Due, Framing};
use crate::metrics::{Handshake, count_handshake};
use crate::read_ahead::MayRead;
use crate::second_poll::SecondPoll;
use crate::tls::HANDSHAKE;
use crate::transport::Transport;

/// The response to a client whose head is late.
const REQUEST_TIMEOUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// The state of a connection between two requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No byte of the first head has arrived, nor the end of a TLS handshake before it. Timed.
    First,
    /// No byte of the next head has arrived; `keep_alive_secs` bounds it.
    Idle,
    /// A head has begun and is not complete. Timed.
    Begun,
    /// A head is complete, and the request is about to be served.
    Complete,
    /// A request is served: its body is read, its response is written.
    Serving,
    /// The request was answered before its body had arrived. Timed: the HTTP layer reads the rest of the
    /// body, or closes the connection.
    Unread,
}

/// What a connection has a time for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimedWait {
    /// The first byte of a new connection, or of the first head behind a handshake.
    FirstByte,
    /// The rest of a TLS handshake.
    Handshake,
    /// The rest of a head.
    Head,
    /// The rest of a body whose request is answered.
    Body,
}

/// How long a client may take to send something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For the first byte of a new connection.
    pub(crate) first_byte: Duration,
    /// For a head from its first byte, for a TLS handshake from its first byte, and for the rest of a body whose
    /// request is answered.
    pub(crate) head: Duration,
}

impl Timeouts {
    fn of(&self, wait: TimedWait) -> Duration {
        match wait {
            TimedWait::FirstByte => self.first_byte,
            TimedWait::Handshake | TimedWait::Head | TimedWait::Body => self.head,
        }
    }
}

/// The head state that a connection's socket and its requests share.
#[derive(Debug)]
pub(crate) struct HeadProgress {
    phase: Cell<Phase>,
    framing: RefCell<Framing>,
    /// Bytes that were passed on in this run of the connection's task.
    in_run: Cell<u64>,
    /// What was read beyond the end of a request, and is not passed on yet.
    held: RefCell<Vec<u8>>,
    /// Wakes the connection's task when more may be read, when a time begins, or when the connection is to be
    /// closed.
    task: RefCell<Option<Waker>>,
    /// When the connection was made, or its last request was answered.
    since: Cell<Instant>,
    /// The connection is to be closed if no byte of a request has arrived.
    is_unwanted: Cell<bool>,
    /// A part of a TLS handshake has arrived, and the rest is due.
    is_in_handshake: Cell<bool>,
    /// The body of the request that is served waits for memory of its tenant.
    waits_for_room: Cell<bool>,
    /// When it waited first.
    waited: Cell<Option<Instant>>,
    /// Nothing more is read: the connection was closed while a body waited.
    is_cut: Cell<bool>,
    /// The name of the tenant that accepted the last request that was not refused.
    holder: RefCell<Option<Arc<str>>>,
    second_poll: SecondPoll,
}

/// What a connection waits for that does not serve a request, or cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// No byte of a request has arrived.
    Idle,
    /// A part of a head has arrived, of a TLS handshake, or of a body whose request is answered.
    HalfHead,
    /// A part of a body has arrived, and its tenant has no memory for the rest.
    Body,
}

/// The body of a request waits for memory until this is dropped.
pub(crate) struct WaitsForRoom<'a>(&'a HeadProgress);

impl Drop for WaitsForRoom<'_> {
    fn drop(&mut self) {
        self.0.waits_for_room.set(false);
    }
}

impl HeadProgress {
    /// The progress of a new connection.
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            phase: Cell::new(Phase::First),
            framing: RefCell::default(),
            in_run: Cell::new(0),
            held: RefCell::default(),
            task: RefCell::default(),
            since: Cell::new(Instant::now()),
            is_unwanted: Cell::new(false),
            is_in_handshake: Cell::new(false),
            waits_for_room: Cell::new(false),
            waited: Cell::new(None),
            is_cut: Cell::new(false),
            holder: RefCell::default(),
            second_poll: SecondPoll::default(),
        })
    }

    /// The progress of a connection that serves a request.
    #[cfg(test)]
    pub(crate) fn new_serving() -> Rc<Self> {
        let heads = Self::new();
        heads.phase.set(Phase::Serving);
        heads
    }

    /// The progress of this request's connection.
    pub(crate) fn of(request: &Request) -> Option<&Rc<Self>> {
        request.conn_data()
    }

    /// Could another parser have read the head of the request that is served in another way?
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.framing.borrow().is_ambiguous()
    }

    /// Waits until the HTTP layer has passed on what arrived behind the head of the request that is served.
    pub(crate) async fn pass_on(&self) {
        if self.framing.borrow().has_body() {
            self.second_poll.come().await;
        }
    }

    /// Whether the answer to a request waits for a second poll.
    pub(crate) fn second_poll(&self) -> &SecondPoll {
        &self.second_poll
    }

    /// A session of this tenant accepted the request that is served: the connection counts for the
    /// tenant until another one accepts a request. A refused request changes nothing, so that no
    /// client adds connections to a tenant without being its client.
    pub(crate) fn set_holder(&self, tenant: &Arc<str>) {
        let mut holder = self.holder.borrow_mut();
        if holder.as_ref().is_none_or(|holder| !Arc::ptr_eq(holder, tenant)) {
            *holder = Some(Arc::clone(tenant));
        }
    }

    /// The tenant for which this connection counts, if there is one.
    pub(crate) fn holder(&self) -> Option<Arc<str>> {
        self.holder.borrow().clone()
    }

    /// Is the connection being closed?
    pub(crate) fn is_closing(&self) -> bool {
        self.is_unwanted.get()
    }

    /// Notes that the body of the request waits for memory: when the buffer of the HTTP layer is full, nothing is
    /// read, and it is not noticed if the client goes away.
    pub(crate) fn wait_for_room(&self) -> WaitsForRoom<'_> {
        self.waits_for_room.set(true);
        self.waited.set(self.waited.get().or_else(|| Some(Instant::now())));
        WaitsForRoom(self)
    }

    /// What the connection waits for, and since when; `None` while it serves a request, or if it is
    /// being closed. A body waits since the first of its pieces did.
    pub(crate) fn rest(&self) -> Option<(Rest, Instant)> {
        let rest = self.awaited().filter(|_| !self.is_unwanted.get())?;
        let waited = self.waited.get().filter(|_| rest == Rest::Body);
        Some((rest, waited.unwrap_or_else(|| self.since.get())))
    }

    fn awaited(&self) -> Option<Rest> {
        Some(match self.phase.get() {
            Phase::First if self.is_in_handshake.get() => Rest::HalfHead,
            Phase::First | Phase::Idle => Rest::Idle,
            Phase::Begun | Phase::Unread => Rest::HalfHead,
            Phase::Complete | Phase::Serving if self.waits_for_room.get() => Rest::Body,
            // Otherwise the request is served in the run in which its head is complete.
            Phase::Complete => Rest::HalfHead,
            Phase::Serving => return None,
        })
    }

    /// Closes the connection, unless a request or more of a head arrives first. A body that waits for memory is
    /// refused before, and its rest is not read.
    pub(crate) fn close(&self) {
        self.is_cut.set(self.awaited() == Some(Rest::Body));
        self.is_unwanted.set(true);
        self.wake();
    }

    /// Whether a part of a TLS handshake has arrived. After the handshake the connection is as a new
    /// one.
    fn set_in_handshake(&self, is_in_handshake: bool) {
        if self.is_in_handshake.replace(is_in_handshake) && !is_in_handshake {
            self.since.set(Instant::now());
        }
    }

    fn wake(&self) {
        if let Some(task) = &*self.task.borrow() {
            task.wake_by_ref();
        }
    }

    /// Notes that a run of the connection's task begins.
    pub(crate) fn begin_run(&self) {
        self.in_run.set(0);
    }

    /// The last request is answered, and none is being read.
    fn is_between(&self) -> bool {
        matches!(self.phase.get(), Phase::Idle | Phase::Begun)
    }

    /// What may be read now.
    fn may_read(&self) -> MayRead {
        let is_ahead = !self.held.borrow().is_empty();
        MayRead::of(self.framing.borrow().due(), self.in_run.get(), is_ahead)
    }

    /// Looks at bytes that arrived. Returns how many of them may be passed on: those up to the end of the request
    /// that is served, or of the next one.
    fn received(&self, bytes: &[u8]) -> usize {
        let mut framing = self.framing.borrow_mut();
        let mut passed = framing.read(bytes);
        if matches!(self.phase.get(), Phase::Complete | Phase::Serving) || bytes.is_empty() {
            return passed;
        }
        if self.phase.get() == Phase::Unread {
            if framing.due() != Due::Nothing {
                return passed;
            }
            framing.begin_next();
            self.phase.set(Phase::Idle);
            if passed == bytes.len() {
                return passed;
            }
            passed += framing.read(&bytes[passed..]);
        }
        match framing.due() {
            Due::Head => self.phase.set(Phase::Begun),
            _ => self.phase.set(Phase::Complete),
        }
        passed
    }

    /// Holds bytes back until the request that is served is answered.
    fn hold(&self, bytes: &[u8]) {
        let mut held = self.held.borrow_mut();
        // What was held back before is behind these.
        held.splice(..0, bytes.iter().copied());
    }

    /// What has a time now.
    fn timed_wait(&self) -> Option<TimedWait> {
        match self.phase.get() {
            Phase::First if self.is_in_handshake.get() => Some(TimedWait::Handshake),
            Phase::First => Some(TimedWait::FirstByte),
            Phase::Begun => Some(TimedWait::Head),
            Phase::Unread => Some(TimedWait::Body),
            Phase::Idle | Phase::Complete | Phase::Serving => None,
        }
    }

    fn begin_request(&self) {
        self.waited.set(None);
        if self.phase.replace(Phase::Serving) != Phase::Complete {
            self.framing.borrow_mut().lose();
        }
    }

    fn finish(&self) {
        self.since.set(Instant::now());
        let mut framing = self.framing.borrow_mut();
        if framing.due() == Due::Nothing {
            framing.begin_next();
            self.phase.set(Phase::Idle);
        } else {
            self.phase.set(Phase::Unread);
        }
        // What is held back may be read, and the time of the rest begins.
        if self.phase.get() == Phase::Unread || !self.held.borrow().is_empty() {
            self.wake();
        }
    }
}

/// Marks a request as served until it is dropped.
#[derive(Debug)]
pub(crate) struct Serving(Option<Rc<HeadProgress>>);

impl Serving {
    /// The guard of a request on this connection.
    pub(crate) fn of(request: &Request) -> Self {
        let heads = HeadProgress::of(request).cloned();
        if let Some(heads) = &heads {
            heads.begin_request();
        }
        Self(heads)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(heads) = &self.0 {
            heads.finish();
        }
    }
}

/// A response's body. Its request counts as served for as long as the HTTP layer keeps the body.
pub(crate) struct Served<B> {
    body: B,
    _serving: Serving,
}

impl<B> Served<B> {
    pub(crate) fn new(body: B, serving: Serving) -> Self {
        Self { body, _serving: serving }
    }
}

impl<B: MessageBody + Unpin> MessageBody for Served<B> {
    type Error = B::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_next(context)
    }
}

/// A client's connection. A head that does not arrive in time ends it with a 408.
#[derive(Debug)]
pub(crate) struct Timed<S = TcpStream> {
    stream: S,
    heads: Rc<HeadProgress>,
    timeouts: Timeouts,
    /// The time of what is waited for. Boxed, and created only if a head does not arrive in one read.
    late: Option<(TimedWait, Pin<Box<Sleep>>)>,
    /// The client does not read: a 408 would be written into the middle of a response.
    is_blocked: bool,
}

impl<S: Transport> Timed<S> {
    /// Wraps a connection and times its heads.
    pub(crate) fn new(stream: S, timeouts: Timeouts) -> Self {
        Self { stream, heads: HeadProgress::new(), timeouts, late: None, is_blocked: false }
    }

    /// The state to share with the requests of the connection.
    pub(crate) fn heads(&self) -> &Rc<HeadProgress> {
        &self.heads
    }

    /// Answers a connection that is not served, before it is closed.
    pub(crate) fn refuse(mut self, answer: &[u8]) {
        self.stream.write_last(answer);
    }

    /// Reads what was held back, or else from the socket.
    fn poll_read_at_most(
        &mut self,
        bytes_max: u64,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut held = self.heads.held.borrow_mut();
        if held.is_empty() {
            return Pin::new(&mut (&mut self.stream).take(bytes_max)).poll_read(context, into);
        }
        let length = held.len().min(into.remaining());
        into.put_slice(&held[..length]);
        held.drain(..length);
        if held.is_empty() {
            *held = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Starts, stops and polls the timer. Returns what is late.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Option<TimedWait> {
        let wait = self.heads.timed_wait();
        self.late.take_if(|(of, _)| Some(*of) != wait);
        let wait = wait?;
        let (_, late) = self
            .late
            .get_or_insert_with(|| (wait, Box::pin(tokio::time::sleep(self.timeouts.of(wait)))));
        late.as_mut().poll(context).is_ready().then_some(wait)
    }

    /// Ends the connection, since this is late. Silence and a handshake get no answer.
    fn end(&mut self, late: TimedWait) -> Poll<io::Result<()>> {
        if matches!(late, TimedWait::Head | TimedWait::Body) && !self.is_blocked {
            self.stream.write_last(REQUEST_TIMEOUT);
        }
        Poll::Ready(Ok(()))
    }

    fn note_task(&self, context: &Context<'_>) {
        let mut task = self.heads.task.borrow_mut();
        if task.as_ref().is_none_or(|task| !task.will_wake(context.waker())) {
            *task = Some(context.waker().clone());
        }
    }
}

impl<S: Transport> AsyncRead for Timed<S> {
    /// Reads. If a head is late, the reader gets the end of the connection.
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.note_task(context);
        if this.heads.is_cut.get() {
            // The body is refused first: at the end of what can be read, the HTTP layer would drop its request.
            return match this.heads.waits_for_room.get() {
                true => Poll::Pending,
                false => Poll::Ready(Ok(())),
            };
        }
        // Of a first byte the time is looked at behind the read: one that arrives in this moment is not late.
        if this.heads.timed_wait() != Some(TimedWait::FirstByte)
            && let Some(late) = this.poll_late(context)
        {
            return this.end(late);
        }
        // Answers that the client does not read would gather without a bound.
        if this.is_blocked && this.heads.is_between() {
            return Poll::Pending;
        }
        let bytes_max = match this.heads.may_read() {
            MayRead::Bytes(bytes) => bytes,
            MayRead::NextRun => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            // The HTTP layer may also have closed the connection for itself, and serve no request any more.
            MayRead::WhenAnswered if this.heads.is_unwanted.get() => return Poll::Ready(Ok(())),
            MayRead::WhenAnswered => return Poll::Pending,
        };
        let before = into.filled().len();
        let mut read = this.poll_read_at_most(bytes_max, context, into);
        if S::HAS_HANDSHAKE {
            this.heads.set_in_handshake(this.stream.is_in_handshake());
        }
        let received = &into.filled()[before..];
        if !S::HAS_HANDSHAKE
            && received.first() == Some(&HANDSHAKE)
            && this.heads.phase.get() == Phase::First
        {
            count_handshake(Handshake::ListenerWithoutTls);
        }
        let passed = this.heads.received(received);
        if passed < received.len() {
            this.heads.hold(&received[passed..]);
            into.set_filled(before + passed);
            if passed == 0 {
                read = Poll::Pending;
            }
        }
        this.heads.in_run.set(this.heads.in_run.get() + passed as u64);
        if this.heads.is_unwanted.get() {
            match this.heads.awaited() {
                // The reader gets the end of the connection. It still writes the last response.
                Some(_) if read.is_pending() => return Poll::Ready(Ok(())),
                _ => this.heads.is_unwanted.set(false),
            }
        }
        // Also the time of a handshake that has begun in this read.
        if read.is_pending()
            && let Some(late) = this.poll_late(context)
        {
            return this.end(late);
        }
        read
    }
}

impl<S: Transport> AsyncWrite for Timed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        let was_blocked = std::mem::replace(&mut this.is_blocked, written.is_pending());
        if was_blocked && !this.is_blocked {
            // More may be read.
            context.waker().wake_by_ref();
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[path = "head_timeout_tests.rs"]
mod tests;
