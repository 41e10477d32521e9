//! The body of a request. To a server on a fast network the kernel takes all of a long one at once, so it is
//! passed on in pieces, with the permits of its tenant.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fairness::{TickPermit, is_long};
use hyper::body::{Body, Frame, SizeHint};

use crate::sent::Sent;

/// The length of a piece of a long body.
const PIECE_BYTES: usize = 32 << 10;

/// The body of a request.
#[derive(Debug)]
pub(crate) struct Outgoing {
    rest: Bytes,
    /// The tenant and its next permit, for a long body.
    permit: Option<Box<(Arc<str>, TickPermit)>>,
    /// Noted with the last piece.
    sent: Option<Sent>,
}

impl Outgoing {
    /// A body of these bytes, of a request for this tenant.
    pub(crate) fn new(tenant: &Arc<str>, bytes: Bytes, sent: Option<Sent>) -> Self {
        let permit = || Box::new((Arc::clone(tenant), TickPermit::default()));
        Self { permit: is_long(bytes.len()).then(permit), rest: bytes, sent }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let piece = match &mut self.permit {
            None => std::mem::take(&mut self.rest),
            Some(permit) => {
                let (tenant, permit) = &mut **permit;
                ready!(permit.poll(tenant, context));
                let length = self.rest.len().min(PIECE_BYTES);
                self.rest.split_to(length)
            }
        };
        if self.rest.is_empty()
            && let Some(sent) = self.sent.take()
        {
            sent.note();
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_long_body_is_passed_on_in_pieces_of_one_in_each_tick_and_a_short_one_at_once() {
        let tenant = "a".into();
        let bytes: Bytes = (0..200_000).map(|number| number as u8).collect();
        let mut body = Outgoing::new(&tenant, bytes.clone(), None);
        assert_eq!(body.size_hint().exact(), Some(200_000));
        let mut sent = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            let frame = frame.unwrap().into_data().unwrap();
            assert!(frame.len() <= PIECE_BYTES);
            let again = poll_fn(|context| {
                Poll::Ready(Pin::new(&mut body).poll_frame(context).is_pending())
            });
            sent.extend_from_slice(&frame);
            assert!(again.await || body.is_end_stream(), "two pieces in a tick");
        }
        assert_eq!(sent, bytes);

        let mut body = Outgoing::new(&tenant, bytes.slice(..50_000), None);
        let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap().len(), 50_000);
        assert!(body.is_end_stream());
    }
}
