//! Bodies: how a request's is collected, and what a response's may be.

use std::future::poll_fn;
use std::pin::Pin;
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
    /// It is longer than it may be.
    TooLarge,
    /// It took too long.
    TooSlow,
    /// The client went away, or its framing is broken.
    Broken,
}

/// Collects a body of at most `bytes_max` bytes within `wait`. A body that comes in one
/// piece is not copied. Where it fails, the rest is left in the payload.
pub(crate) async fn collect(
    payload: &mut Payload,
    announced: Option<u64>,
    bytes_max: usize,
    wait: Duration,
) -> Result<Bytes, Uncollected> {
    if announced.is_some_and(|bytes| bytes > bytes_max as u64) {
        return Err(Uncollected::TooLarge);
    }
    match tokio::time::timeout(wait, gather(payload, bytes_max)).await {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => Err(Uncollected::TooLarge),
        Ok(Err(_)) => Err(Uncollected::Broken),
        Err(_) => Err(Uncollected::TooSlow),
    }
}

/// `None` where there is more than `bytes_max`.
async fn gather(payload: &mut Payload, bytes_max: usize) -> Result<Option<Bytes>, PayloadError> {
    let Some(first) = next(payload).await else { return Ok(Some(Bytes::new())) };
    let first = first?;
    let Some(second) = next(payload).await else {
        return Ok((first.len() <= bytes_max).then_some(first));
    };
    let mut body = BytesMut::with_capacity((first.len() * 4).min(bytes_max));
    body.extend_from_slice(&first);
    drop(first);
    let mut more = Some(second);
    while let Some(chunk) = more {
        let chunk = chunk?;
        if body.len() + chunk.len() > bytes_max {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
        more = next(payload).await;
    }
    Ok(Some(body.freeze()))
}

async fn next(payload: &mut Payload) -> Option<Result<Bytes, PayloadError>> {
    poll_fn(|context| Pin::new(&mut *payload).poll_next(context)).await
}

/// A response's body.
pub(crate) enum Body {
    /// Nothing more, or nothing at all.
    Empty,
    /// All of it.
    Whole(Bytes),
    /// A refusal, and what was not read of the request's body. While that is held, the
    /// HTTP layer knows that the connection cannot be used again: it says so in the head,
    /// and goes on reading for a bounded time after the answer, so that a client which
    /// still sends gets to read it instead of a reset (POST-19).
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
