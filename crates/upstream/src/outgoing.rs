//! The body of a request, and whether the connection has taken it.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;

/// Most bytes that a connection takes at once. It takes more when it has written nearly all of the former.
const PIECE_BYTES: usize = 64 << 10;

/// Notes that a connection has taken the body of a request.
#[derive(Clone, Debug)]
pub struct Sent(watch::Sender<bool>);

/// Waits until a request is sent. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WhenSent(watch::Receiver<bool>);

impl Sent {
    /// Nothing is sent yet.
    pub fn new() -> (Self, WhenSent) {
        let (sent, when) = watch::channel(false);
        (Self(sent), WhenSent(when))
    }
}

impl WhenSent {
    /// Whether the request is sent, as soon as that is known: it may end without being sent.
    pub async fn is_sent(mut self) -> bool {
        self.0.wait_for(|is_sent| *is_sent).await.is_ok()
    }
}

/// The body of a request.
#[derive(Default)]
pub(crate) struct Outgoing {
    rest: Bytes,
    sent: Option<Sent>,
}

impl Outgoing {
    pub(crate) fn new(body: Bytes, sent: Option<Sent>) -> Self {
        Self { rest: body, sent }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(length);
        if self.rest.is_empty()
            && let Some(Sent(sent)) = self.sent.take()
        {
            sent.send_replace(true);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
