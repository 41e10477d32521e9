//! Bodies: how a request's body is collected, and the forms of a response's body.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use actix_http::Payload;
use actix_http::body::{BodySize, MessageBody};
use actix_http::error::PayloadError;
use bytes::{Bytes, BytesMut};
use futures_util::Stream;

use crate::sse_body::{Broken, SseBody};

/// Why a body was not collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uncollected {
    /// It is longer than its limit.
    TooLarge {
        /// The setting of the limit.
        setting: &'static str,
        /// The limit, in bytes.
        bytes_max: usize,
    },
    /// It did not arrive in time.
    TooSlow,
    /// Unfinished bodies use all the memory that the node allows them.
    TooMany,
    /// The client disconnected, or the framing of the body is broken.
    Broken,
}

impl From<PayloadError> for Uncollected {
    fn from(_: PayloadError) -> Self {
        Self::Broken
    }
}

/// The limit of one body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// Maximum length in bytes.
    pub(crate) bytes_max: usize,
    /// The setting of the limit.
    pub(crate) setting: &'static str,
}

impl Bound {
    fn exceeded(self) -> Uncollected {
        Uncollected::TooLarge { setting: self.setting, bytes_max: self.bytes_max }
    }
}

/// Collects bodies within their limits.
#[derive(Clone, Debug)]
pub(crate) struct Collecting {
    /// The limit of a body that is for a session.
    pub(crate) of_session: Bound,
    /// The limit of the body of a POST without a session id.
    pub(crate) of_initialize: Bound,
    /// How long a body may take to arrive.
    pub(crate) wait: Duration,
    /// The bytes by which all unfinished bodies of the node may still grow. Without this limit,
    /// every connection could hold as much memory as one body may have.
    pub(crate) bytes_left: Arc<AtomicUsize>,
}

/// A first piece of at most this size is not counted: a connection has a buffer of about that
/// size anyway, and most bodies fit into it.
const SMALL_BYTES: usize = 8 << 10;

/// How long a body waits for memory where a refusal would make its client end the session, and
/// the interval between two attempts.
const MEMORY_WAIT: Duration = Duration::from_secs(5);
const MEMORY_RETRY: Duration = Duration::from_millis(20);

/// The memory that one unfinished body has reserved; released on drop.
struct MemoryShare<'a> {
    bytes_left: &'a AtomicUsize,
    bytes: usize,
    /// How long the body may still wait for memory. Meanwhile its client cannot send more.
    wait_left: Duration,
}

impl MemoryShare<'_> {
    async fn grow(&mut self, bytes: usize) -> Result<(), Uncollected> {
        let smaller = |bytes_left: usize| bytes_left.checked_sub(bytes);
        while self.bytes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, smaller).is_err() {
            self.wait_left =
                self.wait_left.checked_sub(MEMORY_RETRY).ok_or(Uncollected::TooMany)?;
            tokio::time::sleep(MEMORY_RETRY).await;
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for MemoryShare<'_> {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        self.bytes_left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// Collects a body. A body that arrives in one piece is not copied. If collecting fails, the rest
/// stays in the payload.
pub(crate) async fn collect(
    payload: &mut Payload,
    announced: Option<u64>,
    how: &Collecting,
    bound: Bound,
    waits_for_memory: bool,
) -> Result<Bytes, Uncollected> {
    if announced.is_some_and(|bytes| bytes > bound.bytes_max as u64) {
        return Err(bound.exceeded());
    }
    let gathered =
        tokio::time::timeout(how.wait, gather(payload, how, bound, waits_for_memory)).await;
    gathered.unwrap_or(Err(Uncollected::TooSlow))
}

async fn gather(
    payload: &mut Payload,
    how: &Collecting,
    bound: Bound,
    waits_for_memory: bool,
) -> Result<Bytes, Uncollected> {
    let Some(first) = next(payload).await else { return Ok(Bytes::new()) };
    let first = first?;
    if first.len() > bound.bytes_max {
        return Err(bound.exceeded());
    }
    let wait_left = if waits_for_memory { MEMORY_WAIT } else { Duration::ZERO };
    let mut share = MemoryShare { bytes_left: &how.bytes_left, bytes: 0, wait_left };
    if first.len() > SMALL_BYTES {
        share.grow(first.len()).await?;
    }
    let Some(second) = next(payload).await else { return Ok(first) };
    let mut body = BytesMut::with_capacity((first.len() * 4).min(bound.bytes_max));
    body.extend_from_slice(&first);
    drop(first);
    let mut more = Some(second);
    while let Some(chunk) = more {
        let chunk = chunk?;
        if body.len() + chunk.len() > bound.bytes_max {
            return Err(bound.exceeded());
        }
        share.grow(chunk.len()).await?;
        body.extend_from_slice(&chunk);
        more = next(payload).await;
    }
    Ok(body.freeze())
}

async fn next(payload: &mut Payload) -> Option<Result<Bytes, PayloadError>> {
    poll_fn(|context| Pin::new(&mut *payload).poll_next(context)).await
}

/// A response's body.
pub(crate) enum Body {
    /// No bytes.
    Empty,
    /// The whole body.
    Whole(Bytes),
    /// A refusal, and the unread rest of the request's body. While the rest is held, the HTTP
    /// layer treats the connection as not reusable: it sends `Connection: close` and reads on for
    /// a bounded time. A client that is still sending can then read the answer instead of a reset
    /// (POST-19).
    Early { answer: Bytes, _unread: Payload },
    /// A stream of events.
    Events(SseBody),
}

impl MessageBody for Body {
    type Error = Broken;

    fn size(&self) -> BodySize {
        match self {
            Self::Empty => BodySize::Sized(0),
            Self::Whole(bytes) | Self::Early { answer: bytes, .. } => {
                BodySize::Sized(bytes.len() as u64)
            }
            Self::Events(_) => BodySize::Stream,
        }
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Broken>>> {
        let whole = match self.get_mut() {
            Self::Empty => return Poll::Ready(None),
            Self::Events(events) => {
                return Poll::Ready(ready!(events.poll_chunk(context)));
            }
            Self::Whole(bytes) | Self::Early { answer: bytes, .. } => std::mem::take(bytes),
        };
        Poll::Ready((!whole.is_empty()).then_some(Ok(whole)))
    }
}
