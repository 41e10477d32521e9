//! The forms of a response's body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_http::Payload;
use actix_http::body::{BodySize, MessageBody};
use bytes::Bytes;

use crate::sse_body::{Broken, SseBody};

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
