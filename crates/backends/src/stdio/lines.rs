//! Lines out of a process's output, bounded.

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memchr;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// What is read at once.
const CHUNK: usize = 8 << 10;

/// A line up to this long is copied out of the buffer: a session may keep it for long,
/// and must not keep a whole chunk with it. A longer one is split off uncopied.
const COPIED_MAX: usize = 4 << 10;

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// A line, without its end (`\n` or `\r\n`).
    Whole(Bytes),
    /// The output ended inside this line.
    Cut(Bytes),
    /// The line is longer than allowed. There is no way on from here.
    TooLong,
    /// Nothing.
    End,
}

/// Splits what it reads into lines.
pub(super) struct Lines<R> {
    source: R,
    line_bytes_max: usize,
    buffer: BytesMut,
    /// How much of the buffer is known to have no line end.
    searched: usize,
    /// Is what comes the rest of a shortened line?
    is_rest: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(source: R, line_bytes_max: usize) -> Self {
        Self { source, line_bytes_max, buffer: BytesMut::new(), searched: 0, is_rest: false }
    }

    /// The next line. When the future is dropped, nothing is lost.
    pub(super) async fn next(&mut self) -> Line {
        loop {
            if let Some(line) = self.cut() {
                return line;
            }
            self.buffer.reserve(CHUNK);
            match self.source.read_buf(&mut self.buffer).await {
                // A broken pipe and an end come to the same.
                Ok(0) | Err(_) if self.buffer.is_empty() => return Line::End,
                Ok(0) | Err(_) => {
                    self.searched = 0;
                    return Line::Cut(self.buffer.split().freeze());
                }
                Ok(_) => {}
            }
        }
    }

    /// The next line, or as much of it as is allowed; `None` at the end.
    pub(super) async fn next_shortened(&mut self) -> Option<Bytes> {
        loop {
            match self.next().await {
                Line::Whole(_) | Line::Cut(_) if self.is_rest => self.is_rest = false,
                Line::Whole(line) | Line::Cut(line) => return Some(line),
                Line::TooLong => {
                    let part = self.buffer.split_to(self.line_bytes_max);
                    self.searched = 0;
                    if !std::mem::replace(&mut self.is_rest, true) {
                        return Some(Bytes::copy_from_slice(&part));
                    }
                }
                Line::End => return None,
            }
        }
    }

    /// A line from the buffer.
    fn cut(&mut self) -> Option<Line> {
        let Some(found) = memchr(b'\n', &self.buffer[self.searched..]) else {
            self.searched = self.buffer.len();
            return (self.searched > self.line_bytes_max).then_some(Line::TooLong);
        };
        let length = self.searched + found;
        self.searched = 0;
        if length > self.line_bytes_max {
            return Some(Line::TooLong);
        }
        let mut line = if length <= COPIED_MAX {
            let line = Bytes::copy_from_slice(&self.buffer[..length]);
            self.buffer.advance(length + 1);
            line
        } else {
            self.buffer.split_to(length + 1).freeze().slice(..length)
        };
        if line.last() == Some(&b'\r') {
            line.truncate(line.len() - 1);
        }
        if self.buffer.is_empty() && self.buffer.capacity() > 2 * CHUNK {
            self.buffer = BytesMut::new();
        }
        Some(Line::Whole(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(text: &[u8], line_bytes_max: usize) -> Vec<Line> {
        let mut lines = Lines::new(text, line_bytes_max);
        let mut found = Vec::new();
        loop {
            let line = lines.next().await;
            let is_last = matches!(line, Line::End | Line::TooLong);
            found.push(line);
            if is_last {
                return found;
            }
        }
    }

    fn whole(text: &str) -> Line {
        Line::Whole(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[tokio::test]
    async fn lines_may_end_either_way() {
        let found = lines(b"a\r\nb\n\nc\n", 100).await;
        assert_eq!(found, [whole("a"), whole("b"), whole(""), whole("c"), Line::End]);
    }

    #[tokio::test]
    async fn lines_are_the_same_in_whatever_pieces_they_come() {
        let text = format!("a\r\n\n{}\n{}\nz\n", "b".repeat(300), "c".repeat(9000));
        let expected = lines(text.as_bytes(), 10_000).await;
        for piece in [1, 2, 7, 4096] {
            let (mut writer, reader) = tokio::io::duplex(piece);
            let text = text.clone();
            tokio::spawn(async move {
                tokio::io::AsyncWriteExt::write_all(&mut writer, text.as_bytes()).await.unwrap();
            });
            let mut lines = Lines::new(reader, 10_000);
            for line in &expected {
                assert_eq!(lines.next().await, *line);
            }
        }
    }

    #[tokio::test]
    async fn a_line_that_is_not_ended_is_none() {
        assert_eq!(
            lines(b"a\nb", 100).await,
            [whole("a"), Line::Cut(Bytes::from_static(b"b")), Line::End]
        );
    }

    #[tokio::test]
    async fn a_line_is_at_most_as_long_as_allowed() {
        assert_eq!(lines(b"abc\nabcd\n", 3).await, [whole("abc"), Line::TooLong]);
        let endless = vec![b'x'; 10 * CHUNK];
        assert_eq!(lines(&endless, 20_000).await, [Line::TooLong]);
    }

    #[tokio::test]
    async fn a_line_to_be_shortened_loses_its_rest_only() {
        let text = format!("{}\nshort\n{}", "x".repeat(3 * CHUNK), "y".repeat(20));
        let mut lines = Lines::new(text.as_bytes(), 10);
        assert_eq!(lines.next_shortened().await.unwrap(), "x".repeat(10));
        assert_eq!(lines.next_shortened().await.unwrap(), "short");
        assert_eq!(lines.next_shortened().await.unwrap(), "y".repeat(10));
        assert_eq!(lines.next_shortened().await, None);
    }

    #[tokio::test]
    async fn a_long_line_comes_in_one_piece_and_leaves_no_large_buffer() {
        let long = "x".repeat(100_000);
        let text = format!("{long}\n");
        let mut lines = Lines::new(text.as_bytes(), 1 << 20);
        assert_eq!(lines.next().await, whole(&long));
        assert_eq!(lines.buffer.capacity(), 0);
    }
}
