//! The receive buffer of a connection.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use prost::Message as _;
use tokio::io::AsyncReadExt as _;

use crate::frame::Frame;
use crate::wire::Wire;

/// The free space for the next read, in bytes.
const ROOM_BYTES: usize = 16 << 10;

/// The longest encoded length of a frame, in bytes: five times seven bits.
const LENGTH_BYTES_MAX: usize = 5;

/// A buffer of complete frames and the beginning of the next one.
#[derive(Debug)]
pub(crate) struct Inbox {
    bytes: BytesMut,
    frame_bytes_max: usize,
}

/// The other end sent bytes that no node sends, or a longer frame than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Inbox {
    pub(crate) fn new(frame_bytes_max: usize) -> Self {
        Self { bytes: BytesMut::new(), frame_bytes_max }
    }

    /// Sets the longest frame that is accepted from now on.
    pub(crate) fn admit(&mut self, frame_bytes_max: usize) {
        self.frame_bytes_max = frame_bytes_max;
    }

    /// The next frame, if it has arrived completely.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some((head, length)) = length(&self.bytes)? else { return Ok(None) };
        if length > self.frame_bytes_max {
            return Err(Malformed);
        }
        if self.bytes.len() - head < length {
            self.bytes.reserve(head + length - self.bytes.len());
            return Ok(None);
        }
        self.bytes.advance(head);
        let frame = Frame::decode(self.bytes.split_to(length).freeze());
        frame.map(Some).map_err(|_| Malformed)
    }

    /// Reads from the connection. Returns the number of bytes read; 0 at its end.
    pub(crate) fn poll_fill(
        &mut self,
        wire: &mut Wire,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.capacity() == self.bytes.len() {
            self.bytes.reserve(ROOM_BYTES);
        }
        // Cancel safe: no byte is lost if the caller stops polling.
        pin!(wire.read_buf(&mut self.bytes)).poll(context)
    }
}

/// The length of the next frame, and the number of bytes that encode the length.
fn length(bytes: &[u8]) -> Result<Option<(usize, usize)>, Malformed> {
    let mut length = 0;
    for (at, byte) in bytes.iter().take(LENGTH_BYTES_MAX).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((at + 1, length)));
        }
    }
    if bytes.len() < LENGTH_BYTES_MAX { Ok(None) } else { Err(Malformed) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::frame::{Kind, Open, Reply};

    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        let body = || prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
        let kind =
            prop_oneof![
                (any::<u64>(), any::<u32>(), body())
                    .prop_map(|(id, window, body)| Kind::Open(Open { id, window, body, rest: 0 })),
                (any::<u64>(), body(), any::<bool>())
                    .prop_map(|(id, body, last)| Kind::Reply(Reply { id, body, last, rest: 0 })),
                any::<u64>().prop_map(Kind::Cancel),
                Just(Kind::Ping(())),
                Just(Kind::Pong(())),
            ];
        prop::collection::vec(kind.prop_map(Frame::from), 0..20)
    }

    fn all(inbox: &mut Inbox) -> Result<Vec<Frame>, Malformed> {
        let mut frames = Vec::new();
        while let Some(frame) = inbox.next()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_are_read_as_they_were_written_however_they_are_split(
            frames in frames(),
            pieces in prop::collection::vec(1_usize..100, 1..50),
        ) {
            let mut encoded = BytesMut::new();
            for frame in frames.clone() {
                frame.kind.unwrap().write_to(&mut encoded);
            }
            let mut inbox = Inbox::new(1_000);
            let mut received = Vec::new();
            let mut pieces = pieces.into_iter().cycle();
            while !encoded.is_empty() {
                let piece = encoded.split_to(pieces.next().unwrap().min(encoded.len()));
                inbox.bytes.extend_from_slice(&piece);
                received.extend(all(&mut inbox).unwrap());
            }
            prop_assert_eq!(received, frames);
        }

        #[test]
        fn any_bytes_are_read_as_frames_or_rejected(
            noise in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            let mut inbox = Inbox::new(100);
            inbox.bytes.extend_from_slice(&noise);
            let _ = all(&mut inbox);
            // The buffer never grows beyond the longest accepted frame.
            prop_assert!(inbox.bytes.capacity() <= 600 + 100 + LENGTH_BYTES_MAX);
        }
    }

    #[test]
    fn a_frame_may_be_as_long_as_admitted_and_no_longer() {
        let open = |bytes| {
            let mut encoded = BytesMut::new();
            let body = Bytes::from(vec![0; bytes]);
            Kind::Reply(Reply { id: 0, body, last: false, rest: 0 }).write_to(&mut encoded);
            encoded
        };
        // Two bytes for the frame's length, and for the length of each field before the body.
        let whole = open(195);
        assert_eq!(whole.len(), 2 + 200 + 1);
        let mut inbox = Inbox::new(200);
        inbox.bytes.extend_from_slice(&whole);
        assert_eq!(inbox.next(), Err(Malformed));
        inbox.admit(201);
        assert!(matches!(inbox.next(), Ok(Some(_))));
        assert_eq!(inbox.next(), Ok(None));
    }

    #[test]
    fn a_length_without_end_is_refused() {
        let mut inbox = Inbox::new(usize::MAX);
        inbox.bytes.extend_from_slice(&[0xff; 4]);
        assert_eq!(inbox.next(), Ok(None));
        inbox.bytes.extend_from_slice(&[0xff]);
        assert_eq!(inbox.next(), Err(Malformed));
    }

    #[test]
    fn a_frame_of_an_unknown_kind_has_no_kind() {
        // Field number 99, a varint.
        let mut inbox = Inbox::new(100);
        inbox.bytes.extend_from_slice(&[3, 0x98, 0x06, 1]);
        assert_eq!(inbox.next(), Ok(Some(Frame { kind: None })));
    }
}
