//! Splits the bytes of a pipe into lines: the framing of stdio messages (STD-01).
//!
//! [`LineSplitter`] does no I/O. Its caller appends the bytes that it has read to
//! [`LineSplitter::room`] and takes lines until none is complete.

use bytes::{Buf as _, BufMut, Bytes, BytesMut};
use memchr::memchr;

/// Minimum capacity for each read.
const READ_BYTES: usize = 8 << 10;

/// A line up to this length is copied out of the buffer: a session may keep it for a long time,
/// and must not keep the whole buffer with it. A longer one is split off without a copy.
const COPIED_BYTES_MAX: usize = 4 << 10;

/// One line of a pipe.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// A whole line, without its end (`\n` or `\r\n`). It may be blank.
    Whole(Bytes),
    /// The first bytes of a line that is longer than allowed, as many as are allowed. The
    /// splitter skips the rest of the line.
    TooLong(Bytes),
}

/// Splits bytes into lines of at most `line_bytes_max` bytes. Buffers at most one line and one
/// read.
pub struct LineSplitter {
    buffer: BytesMut,
    /// The length of the part of the buffer that has no line end.
    searched: usize,
    /// The buffer begins inside a line that was too long.
    is_skipping: bool,
    line_bytes_max: usize,
}

impl LineSplitter {
    /// Creates an empty splitter. The carriage return of a line counts as a part of it.
    pub fn new(line_bytes_max: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, is_skipping: false, line_bytes_max }
    }

    /// The buffer to which the next read appends.
    pub fn room(&mut self) -> &mut (impl BufMut + use<>) {
        self.buffer.reserve(READ_BYTES);
        &mut self.buffer
    }

    /// The number of bytes that were read and not returned yet.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the next line that is complete or too long; `None` if more bytes must be read.
    pub fn next_line(&mut self) -> Option<Line> {
        loop {
            let Some(found) = memchr(b'\n', &self.buffer[self.searched..]) else {
                return self.next_of_unended();
            };
            let length = self.searched + found;
            self.searched = 0;
            if std::mem::take(&mut self.is_skipping) {
                self.buffer.advance(length + 1);
                self.give_back_large_buffer();
                continue;
            }
            if length > self.line_bytes_max {
                let start = self.buffer.split_to(self.line_bytes_max).freeze();
                self.buffer.advance(length + 1 - self.line_bytes_max);
                return Some(Line::TooLong(start));
            }
            let mut line = self.split_line(length);
            if line.last() == Some(&b'\r') {
                line.truncate(line.len() - 1);
            }
            self.give_back_large_buffer();
            return Some(Line::Whole(line));
        }
    }

    /// Returns the last line at the end of the pipe, if it has no line end. `None` if the pipe
    /// ended with a line end or inside a line that was too long.
    pub fn take_unended(&mut self) -> Option<Bytes> {
        self.searched = 0;
        let rest = self.buffer.split().freeze();
        (!self.is_skipping && !rest.is_empty()).then_some(rest)
    }

    /// The buffer holds no line end.
    fn next_of_unended(&mut self) -> Option<Line> {
        self.searched = self.buffer.len();
        if self.is_skipping {
            self.forget();
            return None;
        }
        if self.searched <= self.line_bytes_max {
            return None;
        }
        let start = self.buffer.split_to(self.line_bytes_max).freeze();
        self.forget();
        self.is_skipping = true;
        Some(Line::TooLong(start))
    }

    fn split_line(&mut self, length: usize) -> Bytes {
        if length <= COPIED_BYTES_MAX {
            let line = Bytes::copy_from_slice(&self.buffer[..length]);
            self.buffer.advance(length + 1);
            line
        } else {
            self.buffer.split_to(length + 1).freeze().slice(..length)
        }
    }

    fn forget(&mut self) {
        self.buffer.clear();
        self.searched = 0;
    }

    fn give_back_large_buffer(&mut self) {
        if self.buffer.is_empty() && self.buffer.capacity() > 2 * READ_BYTES {
            self.buffer = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of `text`, read in pieces of at most `piece` bytes; the unended one last.
    fn lines(text: &[u8], line_bytes_max: usize, piece: usize) -> (Vec<Line>, Option<Bytes>) {
        let mut splitter = LineSplitter::new(line_bytes_max);
        let mut found = Vec::new();
        for piece in text.chunks(piece) {
            splitter.room().put_slice(piece);
            assert!(splitter.buffer.len() <= line_bytes_max + piece.len());
            found.extend(std::iter::from_fn(|| splitter.next_line()));
        }
        (found, splitter.take_unended())
    }

    fn whole(text: &str) -> Line {
        Line::Whole(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn too_long(text: &str) -> Line {
        Line::TooLong(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn lines_may_end_either_way() {
        let found = lines(b"a\r\nb\n\nc\n", 100, 100);
        assert_eq!(found, (vec![whole("a"), whole("b"), whole(""), whole("c")], None));
    }

    #[test]
    fn lines_are_the_same_in_whatever_pieces_they_come() {
        let long = "c".repeat(9_000);
        let text = format!("a\r\n\n{}\n{long}\n{long}{long}\nz\nlast", "b".repeat(300));
        let expected = lines(text.as_bytes(), 10_000, usize::MAX);
        let too_long = too_long(&format!("{long}{}", "c".repeat(1_000)));
        assert_eq!(
            expected.0,
            [whole("a"), whole(""), whole(&"b".repeat(300)), whole(&long), too_long, whole("z")]
        );
        assert_eq!(expected.1.as_deref(), Some(&b"last"[..]));
        for piece in [1, 2, 7, 64, 4096] {
            assert_eq!(lines(text.as_bytes(), 10_000, piece), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn a_line_that_is_not_ended_is_none() {
        let found = lines(b"a\nb", 100, 100);
        assert_eq!(found, (vec![whole("a")], Some(Bytes::from_static(b"b"))));
    }

    #[test]
    fn a_line_is_at_most_as_long_as_allowed() {
        let found = lines(b"abc\nabcd\nabc\r\nd", 3, 100);
        let expected = vec![whole("abc"), too_long("abc"), too_long("abc")];
        assert_eq!(found, (expected, Some(Bytes::from_static(b"d"))));
    }

    #[test]
    fn a_line_without_end_is_yielded_once_and_not_kept() {
        let endless = vec![b'x'; 1 << 20];
        assert_eq!(lines(&endless, 1_000, 8 << 10), (vec![too_long(&"x".repeat(1_000))], None));
    }

    #[test]
    fn a_line_that_is_too_long_loses_its_rest_only() {
        let text = format!("{}\nshort\n{}", "x".repeat(3 * READ_BYTES), "y".repeat(20));
        let expected = vec![too_long(&"x".repeat(10)), whole("short"), too_long(&"y".repeat(10))];
        assert_eq!(lines(text.as_bytes(), 10, READ_BYTES), (expected, None));
    }

    #[test]
    fn a_long_line_comes_in_one_piece_and_leaves_no_large_buffer() {
        let long = "x".repeat(100_000);
        let mut splitter = LineSplitter::new(1 << 20);
        splitter.room().put_slice(format!("{long}\n").as_bytes());
        assert_eq!(splitter.next_line(), Some(whole(&long)));
        assert_eq!(splitter.buffer.capacity(), 0);
    }
}
