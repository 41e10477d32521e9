//! An SSE stream as a response's body: what a connection is told, as bytes.
//!
//! What is ready goes out in one chunk. The body never ends by itself: the session
//! finishes it or breaks it off, and the reply stream keeps it alive. Dropping it, as the HTTP
//! layer does when the client is gone, drops the reply stream, and so tells the session.

use std::task::{Context, Poll};

use actors::{Frame, ReplyEvent, ReplyStream};
use bytes::{Bytes, BytesMut};
use protocol::sse;

use crate::drain::Present;
use crate::metrics::{Held, STREAMS};

/// A chunk goes out once it is this long, however much more is ready.
const CHUNK_BYTES: usize = 32 << 10;

/// What a chunk has room for to begin with: more than the frames without a message take.
const CHUNK_BYTES_MIN: usize = 128;

/// The body of one SSE response.
#[derive(Debug)]
pub(crate) struct SseBody {
    replies: ReplyStream,
    buffer: BytesMut,
    end: End,
    _open: Held,
    _present: Present,
}

/// How far a stream's end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It goes on.
    Open,
    /// It is complete; what is in the buffer still goes out.
    Finished,
    /// It is to be broken off; what is in the buffer still goes out.
    Breaking,
    /// What was in the buffer is with the kernel, or never will be.
    Broken,
}

/// The stream is broken off on purpose, so that its client comes back.
#[derive(Debug, thiserror::Error)]
#[error("the stream is broken off")]
pub(crate) struct Broken;

impl SseBody {
    /// The stream that `replies` tells.
    pub(crate) fn new(replies: ReplyStream, present: Present) -> Self {
        Self {
            replies,
            buffer: BytesMut::new(),
            end: End::Open,
            _open: Held::new(&STREAMS),
            _present: present,
        }
    }

    /// The same stream, beginning with the event that tells a client of HTTP+SSE where to post.
    pub(crate) fn with_endpoint(mut self, uri: &str) -> Self {
        sse::endpoint(&mut self.buffer, uri);
        self
    }

    /// The next chunk; an error breaks the connection off without an end of the body.
    pub(crate) fn poll_chunk(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Broken>>> {
        self.fill(context);
        if !self.buffer.is_empty() {
            // Nothing is kept: most streams are idle most of the time.
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.buffer).freeze())));
        }
        match self.end {
            End::Open => Poll::Pending,
            End::Finished => Poll::Ready(None),
            // An error now would discard what the HTTP layer has not yet written; it
            // writes while we wait, so wait once.
            End::Breaking => {
                self.end = End::Broken;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            End::Broken => Poll::Ready(Some(Err(Broken))),
        }
    }

    /// Encodes what is ready. Where it stops before the reply stream is exhausted, the chunk is
    /// not empty, and so this is called again.
    fn fill(&mut self, context: &mut Context<'_>) {
        while self.end == End::Open && self.buffer.len() < CHUNK_BYTES {
            match self.replies.poll_next(context) {
                Poll::Ready(Some(ReplyEvent::Frame(frame))) => encode(&mut self.buffer, &frame),
                // The head is written; a duplex session is open from the start anyway.
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
}

/// The name of every message's event: the old clients know no other, the later ones take it.
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
