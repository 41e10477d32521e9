//! Assembles a message that arrives in several pieces.
//!
//! The memory is bounded by the length of the whole message, which the first piece announces.
//! The assembly sends nothing itself, and holds nothing for a message that arrives in one piece.

use bytes::{Bytes, BytesMut};

/// Most bytes that are set aside for a message before they arrive. More are added as they come,
/// so that a peer cannot reserve memory by an announcement alone.
const RESERVED_BYTES_MAX: usize = 1 << 20;

/// A message of which more is to come.
pub(crate) struct Assembly {
    bytes: BytesMut,
    /// Bytes that are still to come; above 0.
    rest: usize,
}

/// What became of the first piece.
pub(crate) enum First {
    /// It is the whole message.
    Whole(Bytes),
    /// More is to come.
    Begun(Assembly),
    /// The whole message would be larger than allowed.
    TooLarge,
}

/// What became of a further piece.
pub(crate) enum Next {
    /// The message is complete.
    Whole(Bytes),
    /// More is to come.
    More,
    /// It does not continue the message: no node sends that.
    Malformed,
}

impl Assembly {
    /// Takes the first piece of a message, and the number of bytes that it announces.
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

    /// Takes a further piece, and the number of bytes that it says are still to come.
    pub(crate) fn add(&mut self, body: &[u8], rest: u64) -> Next {
        let left = self.rest.checked_sub(body.len());
        // A piece without content would let a peer send pieces for ever.
        let Some(left) = left.filter(|left| *left as u64 == rest && !body.is_empty()) else {
            return Next::Malformed;
        };
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
        fn a_message_comes_out_as_it_was_cut(
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
                        First::TooLarge => prop_assert!(false, "it is as large as allowed"),
                    },
                    Some(assembly) => match assembly.add(&piece, rest as u64) {
                        Next::Whole(bytes) => out = Some(bytes),
                        Next::More => {}
                        Next::Malformed => prop_assert!(false, "it continues the message"),
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
    fn pieces_that_do_not_continue_the_message_are_strange() {
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
