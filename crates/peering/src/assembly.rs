//! Assembles a message that arrives in several pieces.
//!
//! The memory is bounded by the length of the whole message, which the first piece announces.
//! The assembly sends nothing itself, and holds nothing for a message that arrives in one piece.

use bytes::{Bytes, BytesMut};

/// The most bytes that are reserved for a message before they arrive, so that a peer cannot reserve much
/// memory by an announcement alone. Once so many have arrived, the buffer has room for the whole message:
/// one that grows with the pieces would copy them again and again.
const RESERVED_BYTES_MAX: usize = 1 << 20;

/// A message that has not arrived completely.
pub(crate) struct Assembly {
    bytes: BytesMut,
    /// The number of bytes that have not arrived yet; above 0.
    rest: usize,
}

/// The result of the first piece.
pub(crate) enum First {
    /// The piece is the whole message.
    Whole(Bytes),
    /// More is to come.
    Begun(Assembly),
    /// The whole message exceeds the bound.
    TooLarge,
}

/// The result of a further piece.
pub(crate) enum Next {
    /// The message is complete.
    Whole(Bytes),
    /// More is to come.
    More,
    /// The piece does not continue the message: no node sends that.
    Malformed,
}

impl Assembly {
    /// Takes the first piece of a message; `rest` is the number of bytes that it announces.
    pub(crate) fn begin_message(body: Bytes, rest: u64, bytes_max: usize) -> First {
        let whole = usize::try_from(rest).ok().and_then(|rest| rest.checked_add(body.len()));
        let Some(whole) = whole.filter(|whole| *whole <= bytes_max) else {
            return First::TooLarge;
        };
        if rest == 0 {
            return First::Whole(body);
        }
        let mut bytes = BytesMut::with_capacity(whole.min(RESERVED_BYTES_MAX.max(body.len())));
        let rest = whole - body.len();
        bytes.extend_from_slice(&body);
        First::Begun(Self { bytes, rest })
    }

    /// Takes a further piece; `rest` is the number of bytes that are to follow it.
    pub(crate) fn add(&mut self, body: &[u8], rest: u64) -> Next {
        let left = self.rest.checked_sub(body.len());
        // Empty pieces are rejected: a peer could send them without end.
        let Some(left) = left.filter(|left| *left as u64 == rest && !body.is_empty()) else {
            return Next::Malformed;
        };
        if self.bytes.capacity() - self.bytes.len() < body.len() {
            self.bytes.reserve(self.rest);
        }
        self.bytes.extend_from_slice(body);
        self.rest = left;
        if left > 0 {
            return Next::More;
        }
        Next::Whole(std::mem::take(&mut self.bytes).freeze())
    }

    /// Length of the whole message, in bytes.
    pub(crate) fn whole_bytes(&self) -> usize {
        self.bytes.len() + self.rest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_assembled_message_equals_the_one_that_was_split(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 1..20),
        ) {
            let whole = pieces.concat();
            let mut rest = whole.len();
            let mut assembly = None;
            let mut out = None;
            for piece in pieces {
                prop_assert!(out.is_none());
                rest -= piece.len();
                match &mut assembly {
                    None => match Assembly::begin_message(piece.into(), rest as u64, whole.len()) {
                        First::Whole(bytes) => out = Some(bytes),
                        First::Begun(begun) => assembly = Some(begun),
                        First::TooLarge => prop_assert!(false, "the message is within the bound"),
                    },
                    Some(assembly) => match assembly.add(&piece, rest as u64) {
                        Next::Whole(bytes) => out = Some(bytes),
                        Next::More => {}
                        Next::Malformed => prop_assert!(false, "the piece continues the message"),
                    },
                }
            }
            prop_assert_eq!(out.as_deref(), Some(&whole[..]));
        }
    }

    #[test]
    fn a_message_above_the_bound_is_refused_by_its_first_piece() {
        let begin = |rest| Assembly::begin_message(Bytes::from_static(b"abc"), rest, 10);
        assert!(matches!(begin(7), First::Begun(_)));
        assert!(matches!(begin(8), First::TooLarge));
        assert!(matches!(begin(u64::MAX), First::TooLarge));
        assert!(matches!(Assembly::begin_message(vec![0; 11].into(), 0, 10), First::TooLarge));
    }

    #[test]
    fn pieces_that_do_not_continue_the_message_are_malformed() {
        for (body, rest) in [(&b"de"[..], 2), (b"de", 0), (b"defg", 0), (b"", 3)] {
            let First::Begun(mut assembly) =
                Assembly::begin_message(Bytes::from_static(b"abc"), 3, 10)
            else {
                panic!("more is to come")
            };
            assert!(matches!(assembly.add(body, rest), Next::Malformed), "{body:?} {rest}");
        }
    }
}
