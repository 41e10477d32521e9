//! Bytes that are passed to the HTTP layer in pieces.
//!
//! The HTTP layer copies what it is given into the write buffer of the connection, also if the
//! client reads nothing. So it gets a little at a time, and what it does not have yet is charged to
//! the tenant. To a client that reads fast the kernel takes all pieces at once, so those of a long message
//! are passed on with permits.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use budget::{Held, in_granules};
use bytes::Bytes;
use fairness::{TickPermit, is_long};

/// The maximum length of a piece. The HTTP layer asks for the next one when its write buffer has
/// less than this.
pub(crate) const PIECE_BYTES: usize = 32 << 10;

/// Bytes that are passed on in pieces.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    rest: Bytes,
    /// The rest, as charged to the tenant's share.
    held: Option<Held>,
    /// The tenant and its next permit, for a long message.
    permit: Option<Box<(Arc<str>, TickPermit)>>,
}

impl Pieces {
    /// Bytes that are charged to nothing.
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { rest: bytes, held: None, permit: None }
    }

    /// The same bytes. What `charge` returns for their number is given back as they are passed on.
    pub(crate) fn charged(self, charge: impl FnOnce(usize) -> Option<Held>) -> Self {
        let held = charge(self.rest.len());
        Self { held, ..self }
    }

    /// The same bytes. If they are long, each piece waits for a permit of this tenant.
    pub(crate) fn of_tenant(self, tenant: &Arc<str>) -> Self {
        let is_long = is_long(self.rest.len());
        Self {
            permit: is_long.then(|| Box::new((Arc::clone(tenant), TickPermit::default()))),
            ..self
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.rest.len()
    }

    /// The next piece, once it may be passed on; `None` after the last.
    pub(crate) fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        if let Some(permit) = &mut self.permit {
            let (tenant, permit) = &mut **permit;
            ready!(permit.poll(tenant, context));
        }
        Poll::Ready(self.next_piece())
    }

    /// The next piece, without a permit.
    pub(crate) fn next_piece(&mut self) -> Option<Bytes> {
        let piece = match self.rest.len() {
            0 => return None,
            length if length > PIECE_BYTES => self.rest.split_to(PIECE_BYTES),
            _ => std::mem::take(&mut self.rest),
        };
        if self.rest.is_empty() {
            self.held = None;
        } else if let Some(held) = &mut self.held {
            held.set(in_granules(self.rest.len()));
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use budget::Budget;

    use super::*;

    #[test]
    fn short_bytes_are_one_piece_and_none_are_no_piece() {
        let mut pieces = Pieces::new(Bytes::from_static(b"short"));
        assert_eq!(pieces.next_piece().unwrap(), "short");
        assert_eq!(pieces.next_piece(), None);
        assert_eq!(Pieces::default().next_piece(), None);
    }

    #[test]
    fn long_bytes_are_charged_until_they_are_passed_on() {
        let share = Budget::unlimited().unnamed_share("acme");
        let length = 2 * PIECE_BYTES + 5;
        let charge = |bytes: usize| {
            let mut held = Held::nothing(&share);
            held.set(in_granules(bytes));
            Some(held)
        };
        let mut pieces = Pieces::new(vec![b'x'; length].into()).charged(charge);
        let mut passed = 0;
        while let Some(piece) = pieces.next_piece() {
            assert!(piece.len() <= PIECE_BYTES);
            passed += piece.len();
            assert_eq!(share.used(), in_granules(length - passed));
        }
        assert_eq!((passed, share.used()), (length, 0));
    }

    #[actix_rt::test]
    async fn long_messages_pass_on_one_piece_in_each_tick_and_short_ones_all() {
        let tenant = "acme".into();
        let of = |length: usize| Pieces::new(vec![b'x'; length].into()).of_tenant(&tenant);
        let (mut long, mut other) = (of(fairness::LONG_BYTES + 1), of(fairness::LONG_BYTES + 1));
        let mut short = of(fairness::LONG_BYTES);
        poll_fn(|context| {
            assert!(long.poll_piece(context).is_ready());
            assert!(long.poll_piece(context).is_pending());
            assert!(other.poll_piece(context).is_pending());
            while let Poll::Ready(Some(_)) = short.poll_piece(context) {}
            assert_eq!(short.len(), 0);
            Poll::Ready(())
        })
        .await;
        while poll_fn(|context| long.poll_piece(context)).await.is_some() {}
        while poll_fn(|context| other.poll_piece(context)).await.is_some() {}
        assert_eq!((long.len(), other.len()), (0, 0));
    }
}
