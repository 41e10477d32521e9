//! Bytes that arrive in pieces and are joined at the end.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::{LONG_BYTES, compute_for_bytes};

/// Bytes that arrive in pieces. To add a piece takes time for its own bytes only: one buffer that grows
/// would copy all bytes again and again, and touch new memory each time, which takes milliseconds.
///
/// They need as much memory as their bytes and one block, however small the pieces are.
#[derive(Debug, Default)]
pub struct Blocks {
    /// Each has [`LONG_BYTES`].
    full: Vec<BytesMut>,
    last: BytesMut,
}

impl Blocks {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.full.len() * LONG_BYTES + self.last.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a piece.
    pub fn add(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            let room = LONG_BYTES - self.last.len();
            let (fits, rest) = piece.split_at(room.min(piece.len()));
            self.last.extend_from_slice(fits);
            piece = rest;
            if self.last.len() == LONG_BYTES {
                let next = BytesMut::with_capacity(piece.len().min(LONG_BYTES));
                self.full.push(std::mem::replace(&mut self.last, next));
            }
        }
    }

    /// All bytes in one buffer. Those of a long message are joined on a thread with a lower priority.
    pub async fn join(self, tenant: &Arc<str>) -> Bytes {
        if self.full.is_empty() {
            return self.last.freeze();
        }
        compute_for_bytes(tenant, self.len(), move || self.joined()).await
    }

    fn joined(mut self) -> Bytes {
        let mut joined = BytesMut::with_capacity(self.len());
        for block in self.full.drain(..) {
            joined.extend_from_slice(&block);
        }
        joined.extend_from_slice(&self.last);
        joined.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_of_any_length_are_joined_in_their_order() {
        let bytes: Vec<u8> = (0..3 * LONG_BYTES + 5).map(|number| (number / 7) as u8).collect();
        for whole in [0, 1, LONG_BYTES, LONG_BYTES + 1, bytes.len()] {
            for piece in [1, 1_000, LONG_BYTES, 2 * LONG_BYTES] {
                let mut blocks = Blocks::default();
                bytes[..whole].chunks(piece).for_each(|piece| blocks.add(piece));
                assert_eq!((blocks.len(), blocks.is_empty()), (whole, whole == 0));
                assert!(blocks.last.capacity() <= 2 * LONG_BYTES, "{}", blocks.last.capacity());
                assert_eq!(blocks.join(&"a".into()).await, bytes[..whole]);
            }
        }
    }
}
