//! The forms of a response's body.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_http::Payload;
use actix_http::body::{BodySize, MessageBody};
use bytes::Bytes;

use crate::pieces::Pieces;
use crate::sse_body::{Broken, SseBody};

/// A response's body.
pub(crate) enum Body {
    /// No bytes.
    Empty,
    /// The whole body.
    Whole(Pieces),
    /// A refusal, and the unread rest of the request's body. While the rest is held, the HTTP
    /// layer treats the connection as not reusable: it sends `Connection: close` and reads on for
    /// a bounded time. A client that is still sending can then read the answer instead of a reset
    /// (POST-19).
    Early { answer: Bytes, _unread: Payload },
    /// A stream of events.
    Events(SseBody),
}

impl Body {
    /// A body of these bytes.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Pieces::new(bytes.into()))
    }
}

impl MessageBody for Body {
    type Error = Broken;

    fn size(&self) -> BodySize {
        match self {
            Self::Empty => BodySize::Sized(0),
            Self::Whole(pieces) => BodySize::Sized(pieces.len() as u64),
            Self::Early { answer, .. } => BodySize::Sized(answer.len() as u64),
            Self::Events(_) => BodySize::Stream,
        }
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Broken>>> {
        Poll::Ready(match self.get_mut() {
            Self::Empty => None,
            Self::Events(events) => ready!(events.poll_chunk(context)),
            Self::Whole(pieces) => ready!(pieces.poll_piece(context)).map(Ok),
            Self::Early { answer, .. } => {
                let answer = std::mem::take(answer);
                (!answer.is_empty()).then_some(Ok(answer))
            }
        })
    }
}
