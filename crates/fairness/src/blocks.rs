//! Bytes that arrive in pieces and are joined at the end.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::{LONG_BYTES, compute_for_bytes};

/// The longest block. Its allocation takes no time for its bytes, which are touched when they arrive.
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// A further block has this part of the bytes that there are.
const BLOCK_PART: usize = 8;

/// Bytes that arrive in pieces. To add a piece takes time for its own bytes only: one buffer that grows
/// would copy all bytes again and again, and touch new memory each time, which takes milliseconds.
///
/// They need as much memory as their bytes, and at most an eighth more or [`LONG_BYTES`], however small the
/// pieces are. Later blocks are longer, so that few have to be freed.
#[derive(Debug, Default)]
pub struct Blocks {
    full: Vec<BytesMut>,
    /// The bytes in the blocks that are full.
    full_bytes: usize,
    last: BytesMut,
}

impl Blocks {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.full_bytes + self.last.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a piece.
    pub fn add(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            let block_bytes = self.block_bytes();
            let room = block_bytes - self.last.len();
            let (fits, rest) = piece.split_at(room.min(piece.len()));
            self.make_room(fits.len(), block_bytes);
            self.last.extend_from_slice(fits);
            piece = rest;
            if self.last.len() == block_bytes {
                self.full_bytes += block_bytes;
                self.full.push(std::mem::take(&mut self.last));
            }
        }
    }

    /// Makes room in the last block. One that becomes long gets its whole length at once: if it grew, it would be
    /// copied several times, each time into new memory.
    fn make_room(&mut self, bytes: usize, block_bytes: usize) {
        let length = self.last.len() + bytes;
        let is_long = !self.full.is_empty() || length > block_bytes / 2;
        if is_long && length > self.last.capacity() {
            let mut block = BytesMut::with_capacity(block_bytes);
            block.extend_from_slice(&self.last);
            self.last = block;
        }
    }

    /// The length at which the last block is full.
    fn block_bytes(&self) -> usize {
        (self.full_bytes / BLOCK_PART).clamp(LONG_BYTES, BLOCK_BYTES_MAX)
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
                assert_eq!(blocks.join(&"a".into()).await, bytes[..whole]);
            }
        }
    }

    #[test]
    fn many_bytes_need_few_blocks_and_little_more_memory() {
        for piece in [1, 24, 40, 63, 64, 100].map(|kib| vec![7; kib << 10]) {
            check_memory(&piece);
        }
    }

    fn check_memory(piece: &[u8]) {
        let (mut blocks, mut blocks_most) = (Blocks::default(), 0);
        while blocks.len() < 16 << 20 {
            blocks.add(piece);
            let all = blocks.full.iter().chain([&blocks.last]);
            let more = all.map(BytesMut::capacity).sum::<usize>() - blocks.len();
            assert!(
                more <= LONG_BYTES.max(blocks.len() / BLOCK_PART),
                "{more} of {}",
                blocks.len()
            );
            blocks_most = blocks_most.max(blocks.full.len());
        }
        assert!(blocks_most <= 48, "{blocks_most} blocks have {} bytes", blocks.len());
    }
}
