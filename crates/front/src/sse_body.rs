//! An SSE stream as a response's body: encodes the events of a reply stream as bytes.
//!
//! Ready events are written in one chunk. The body never ends by itself: the session ends or
//! aborts it, and the reply stream sends keep-alive comments. When the client disconnects, the
//! HTTP layer drops the body, and with it the reply stream: the session then detects the
//! disconnect.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actors::{Frame, ReplyEvent, ReplyStream};
use bytes::{Bytes, BytesMut};
use fairness::{Computing, compute, is_long};
use protocol::sse;
use telemetry::Outcome;

use crate::drain::Present;
use crate::exchange::Exchange;
use crate::lapse::Lapse;
use crate::metrics::{GaugeGuard, STREAMS};
use crate::permissions::Grant;
use crate::pieces::{PIECE_BYTES, Pieces};
use crate::stream_spans::SpansOfStream;

/// A chunk is written once it has this length, even if more is ready.
const CHUNK_BYTES: usize = PIECE_BYTES;

/// Initial capacity of a chunk: more than the frames without a message need.
const CHUNK_BYTES_MIN: usize = 128;

/// The body of one SSE response.
pub(crate) struct SseBody {
    replies: ReplyStream,
    buffer: BytesMut,
    /// The text of a message, as far as it was not written. What precedes it is in the buffer or was
    /// written.
    long: Pieces,
    end: End,
    /// Set if this is the only stream of a session of HTTP+SSE, which carries the responses to all of its POSTs.
    spans: Option<SpansOfStream>,
    /// The end of the client's credential.
    lapse: Lapse,
    /// What the client may see; `None`: everything.
    grant: Option<Box<Grant>>,
    /// A long message of which another thread leaves out what the client may not see, and the grant.
    filtering: Option<Computing<(Box<Grant>, Frame)>>,
    exchange: Exchange,
    _open: GaugeGuard,
    _present: Present,
}

/// How far the end of a stream has progressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Not ended.
    Open,
    /// Complete; the rest of the buffer is still to be written.
    Finished,
    /// To be aborted; the rest of the buffer is still to be written.
    Breaking,
    /// Ended; the buffer was passed to the kernel or dropped.
    Broken,
}

/// The stream is aborted on purpose, so that its client resumes it.
#[derive(Debug, thiserror::Error)]
#[error("the stream is broken off")]
pub(crate) struct Broken;

impl SseBody {
    /// A body with the events of `replies`.
    ///
    /// It is broken off when the credential ends: its client resumes it with a new one.
    pub(crate) fn new(
        replies: ReplyStream,
        present: Present,
        mut exchange: Exchange,
        (lapse, grant): (Lapse, Option<Box<Grant>>),
    ) -> Self {
        exchange.status(200);
        Self {
            replies,
            buffer: BytesMut::new(),
            long: Pieces::default(),
            end: End::Open,
            spans: None,
            lapse,
            grant,
            filtering: None,
            exchange,
            _open: GaugeGuard::new(&STREAMS),
            _present: present,
        }
    }

    /// The same body, beginning with the event that names the endpoint for POSTs (HTTP+SSE).
    pub(crate) fn with_endpoint(mut self, uri: &str, spans: SpansOfStream) -> Self {
        sse::endpoint(&mut self.buffer, uri);
        self.spans = Some(spans);
        self
    }

    /// The next chunk. An error closes the connection without an end of the body.
    pub(crate) fn poll_chunk(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Broken>>> {
        if let Some(piece) = ready!(self.long.poll_piece(context)) {
            if self.long.len() == 0 {
                self.buffer.extend_from_slice(sse::END_OF_MESSAGE);
            }
            self.exchange.sent(piece.len());
            return Poll::Ready(Some(Ok(sse::part_of_line(piece))));
        }
        let within = self.exchange.enter_span();
        self.fill(context);
        drop(within);
        if !self.buffer.is_empty() {
            // The buffer is not kept: most streams are idle most of the time.
            let chunk = std::mem::take(&mut self.buffer).freeze();
            self.exchange.sent(chunk.len());
            return Poll::Ready(Some(Ok(chunk)));
        }
        match self.end {
            End::Open => Poll::Pending,
            End::Finished => Poll::Ready(None),
            // An error now would discard what the HTTP layer has not yet written. It writes while
            // this future is pending, so return pending once.
            End::Breaking => {
                self.end = End::Broken;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            End::Broken => Poll::Ready(Some(Err(Broken))),
        }
    }

    /// Encodes what is ready. If it stops before the reply stream is exhausted, the chunk is not
    /// empty, so this is called again.
    fn fill(&mut self, context: &mut Context<'_>) {
        if self.end == End::Open && self.lapse.as_mut().poll(context).is_ready() {
            self.end = End::Breaking;
        }
        while self.end == End::Open && self.buffer.len() < CHUNK_BYTES && self.long.len() == 0 {
            if let Some(filtering) = &mut self.filtering {
                let Poll::Ready((grant, frame)) = Pin::new(filtering).poll(context) else { return };
                (self.grant, self.filtering) = (Some(grant), None);
                self.add(frame);
                continue;
            }
            match self.replies.poll_next(context) {
                Poll::Ready(Some(ReplyEvent::Frame(frame))) => match (self.grant.take(), frame) {
                    (Some(grant), Frame::Message { id, data }) if is_long(data.len()) => {
                        let filtered = move || {
                            let data = grant.filter(data);
                            (grant, Frame::Message { id, data })
                        };
                        self.filtering = Some(compute(self.replies.tenant(), filtered));
                    }
                    (Some(grant), Frame::Message { id, data }) => {
                        let data = grant.filter(data);
                        self.grant = Some(grant);
                        self.add(Frame::Message { id, data });
                    }
                    (grant, frame) => {
                        self.grant = grant;
                        self.add(frame);
                    }
                },
                // The head is written already; a duplex session's stream is open from the start.
                Poll::Ready(Some(ReplyEvent::Open { .. } | ReplyEvent::Answer(_))) => {}
                Poll::Ready(Some(
                    ReplyEvent::Abort | ReplyEvent::Moved | ReplyEvent::LeaseLost { .. },
                )) => {
                    self.end = End::Breaking;
                }
                Poll::Ready(None) => self.end = End::Finished,
                Poll::Pending => return,
            }
        }
    }

    /// Adds a frame that the client may see.
    fn add(&mut self, frame: Frame) {
        if let Frame::Message { data, .. } = &frame {
            match &self.spans {
                Some(spans) => {
                    spans.passed_on(data, &self.replies);
                    self.exchange.passed_on(data);
                }
                None => self.exchange.answered(data),
            }
        }
        self.encode(frame);
    }

    /// Encodes a frame. The text of a message that does not fit into the chunk is not copied.
    fn encode(&mut self, frame: Frame) {
        match frame {
            Frame::Message { id, data } if self.buffer.len() + data.len() > CHUNK_BYTES => {
                let id = id.map(|id| id.to_string());
                sse::begin_message(&mut self.buffer, MESSAGE, id.as_deref());
                let long = Pieces::new(data).charged(|bytes| self.replies.charge(bytes));
                self.long = long.of_tenant(self.replies.tenant());
            }
            frame => encode(&mut self.buffer, &frame),
        }
    }
}

impl Drop for SseBody {
    fn drop(&mut self) {
        self.exchange.served(&self.replies);
        let outcome = match self.end {
            End::Open => Outcome::Left,
            End::Finished => Outcome::Streamed,
            End::Breaking | End::Broken => Outcome::Broken,
        };
        match outcome {
            Outcome::Streamed => self.exchange.end(outcome),
            _ => self.exchange.end_as(outcome),
        }
        if let Some(spans) = &self.spans {
            spans.end(outcome);
        }
    }
}

/// The event name of every message: the old clients require it, the later ones accept it.
const MESSAGE: Option<&str> = Some("message");

fn encode(buffer: &mut BytesMut, frame: &Frame) {
    buffer.reserve(CHUNK_BYTES_MIN);
    match frame {
        Frame::Message { id: Some(id), data } => {
            sse::message(buffer, MESSAGE, Some(&id.to_string()), data);
        }
        Frame::Message { id: None, data } => sse::message(buffer, MESSAGE, None, data),
        Frame::Cursor { id, retry } => sse::cursor(buffer, &id.to_string(), *retry),
        Frame::Retry(retry) => sse::retry(buffer, *retry),
        Frame::KeepAlive => sse::comment(buffer, "ping"),
    }
}
