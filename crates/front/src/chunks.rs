//! Finds the end of a chunked body in the bytes of a connection.
//!
//! It takes the same chunks as the parser of the HTTP layer (actix-http 3.20), and copies nothing.

/// Where a chunked body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunks {
    /// The first digit of a chunk's length is due.
    FirstDigit,
    /// Further digits of this length.
    Digits(u64),
    /// Blanks behind the length.
    Blanks(u64),
    Extension(u64),
    /// The end of the line with the length.
    LengthEnd(u64),
    /// So many bytes of a chunk are due, at least one.
    Data(u64),
    DataReturn,
    DataEnd,
    /// Behind the last chunk: the first byte of a trailer, or of the end.
    TrailerOrEnd,
    Trailer,
    TrailerEnd,
    End,
    /// Behind the end.
    Over,
    /// The parser refuses this body.
    Broken,
}

impl Chunks {
    /// Reads on, up to the end of the body. Returns how many bytes belong to it.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && !matches!(self, Self::Over | Self::Broken) {
            if let Self::Data(left) = *self {
                let there = left.min((bytes.len() - at) as u64);
                at += there as usize;
                *self = if there == left { Self::DataReturn } else { Self::Data(left - there) };
            } else {
                *self = self.next(bytes[at]);
                at += 1;
            }
        }
        at
    }

    /// Where it is behind this byte, which is none of a chunk's data.
    fn next(self, byte: u8) -> Self {
        let digit = char::from(byte).to_digit(16).map(u64::from);
        match (self, byte) {
            (Self::FirstDigit, _) => digit.map_or(Self::Broken, Self::Digits),
            (Self::Digits(length) | Self::Blanks(length), b'\t' | b' ') => Self::Blanks(length),
            (Self::Digits(length) | Self::Blanks(length), b';') => Self::Extension(length),
            (Self::Digits(length) | Self::Blanks(length) | Self::Extension(length), b'\r') => {
                Self::LengthEnd(length)
            }
            (Self::Digits(length), _) => {
                let longer = digit.and_then(|digit| Some(length.checked_mul(16)? + digit));
                longer.map_or(Self::Broken, Self::Digits)
            }
            (Self::Extension(_), 0x00..=0x08 | 0x0a..=0x1f | 0x7f) => Self::Broken,
            (Self::Extension(length), _) => Self::Extension(length),
            (Self::LengthEnd(0), b'\n') | (Self::TrailerEnd, b'\n') => Self::TrailerOrEnd,
            (Self::LengthEnd(length), b'\n') => Self::Data(length),
            (Self::DataReturn, b'\r') => Self::DataEnd,
            (Self::DataEnd, b'\n') => Self::FirstDigit,
            (Self::TrailerOrEnd, b'\r') => Self::End,
            (Self::Trailer, b'\r') => Self::TrailerEnd,
            (Self::TrailerOrEnd | Self::Trailer, _) => Self::Trailer,
            (Self::End, b'\n') => Self::Over,
            _ => Self::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many bytes belong to the body that arrives in pieces of this length, and where it is then.
    fn read(body: &str, length: usize) -> (usize, Chunks) {
        let mut chunks = Chunks::FirstDigit;
        let used = body.as_bytes().chunks(length).map(|piece| chunks.read(piece)).sum();
        (used, chunks)
    }

    #[test]
    fn a_body_ends_behind_its_last_chunk_and_its_trailers_however_it_arrives() {
        for body in [
            "0\r\n\r\n",
            "5\r\nhello\r\n0\r\n\r\n",
            "00A \t;x=\"y\"\r\n0\r\n\r\n56789\r\n1;\r\n\n\r\n0\r\n\r\n",
            "1\r\nx\r\n0\r\nTrailer: a\r\nOther: b\r\n\r\n",
        ] {
            let more = format!("{body}POST / HTTP/1.1\r\n");
            for length in 1..=more.len() {
                assert_eq!(read(&more, length), (body.len(), Chunks::Over), "{body:?} {length}");
                assert_ne!(read(&body[..body.len() - 1], length).1, Chunks::Over, "{body:?}");
            }
        }
    }

    #[test]
    fn a_body_that_the_parser_refuses_is_broken() {
        for body in [
            "x",
            ";",
            "\r\n",
            "5x",
            "5 5",
            "5\n",
            "5;\x7f",
            "1\r\nxx",
            "1\r\nx\rx",
            "0\r\n\rx",
            "0\r\nT: x\r\r",
            "11111111111111111\r\n",
        ] {
            assert_eq!(read(body, 1).1, Chunks::Broken, "{body:?}");
            assert_eq!(read(body, body.len()).1, Chunks::Broken, "{body:?}");
        }
    }
}
