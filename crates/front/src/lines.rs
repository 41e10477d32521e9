//! Lines of a pipe, bounded: what stdio reads messages from.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// How much is read at once.
const READ_BYTES: usize = 8 << 10;

/// One line, without what ends it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// All of it; never empty.
    Whole(Bytes),
    /// It is longer than it may be; it was skipped.
    TooLong,
}

/// Splits a pipe into lines of at most `bytes_max` bytes, and keeps no more than that.
pub(crate) struct Lines<R> {
    pipe: R,
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line end.
    searched: usize,
    skipping: bool,
    bytes_max: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    /// The lines of `pipe`.
    pub(crate) fn new(pipe: R, bytes_max: usize) -> Self {
        Self { pipe, buffer: BytesMut::new(), searched: 0, skipping: false, bytes_max }
    }

    /// The next line that is not blank; `None` at the end. A last line without a line end
    /// counts: its sender closed the pipe, and meant it. May be dropped at any await and
    /// called again.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.take() {
                return Ok(Some(line));
            }
            self.buffer.reserve(READ_BYTES);
            if self.pipe.read_buf(&mut self.buffer).await? == 0 {
                return Ok(self.take_rest());
            }
        }
    }

    /// The next line that is complete, if one is.
    fn take(&mut self) -> Option<Line> {
        while let Some(at) = self.find_end() {
            let mut line = self.buffer.split_to(at + 1);
            line.truncate(at);
            let skipped = std::mem::take(&mut self.skipping);
            if skipped {
                continue;
            }
            if line.len() > self.bytes_max {
                return Some(Line::TooLong);
            }
            if let Some(line) = trimmed(line) {
                return Some(Line::Whole(line));
            }
        }
        if self.skipping {
            self.forget();
        } else if self.buffer.len() > self.bytes_max {
            self.forget();
            self.skipping = true;
            return Some(Line::TooLong);
        }
        None
    }

    fn find_end(&mut self) -> Option<usize> {
        let found = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let at = found.map(|at| at + self.searched);
        self.searched = if at.is_some() { 0 } else { self.buffer.len() };
        at
    }

    fn take_rest(&mut self) -> Option<Line> {
        self.searched = 0;
        trimmed(self.buffer.split()).filter(|_| !self.skipping).map(Line::Whole)
    }

    fn forget(&mut self) {
        self.buffer.clear();
        self.searched = 0;
    }
}

/// Without the carriage return that some clients end lines with (STD-01); `None` where
/// nothing is left.
fn trimmed(mut line: BytesMut) -> Option<Bytes> {
    let blank = |byte: &u8| byte.is_ascii_whitespace();
    let end = line.iter().rposition(|byte| !blank(byte))? + 1;
    line.truncate(end);
    Some(line.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &[u8], bytes_max: usize, piece: usize) -> Vec<Option<String>> {
        let (mut write, pipe) = tokio::io::duplex(piece);
        let text = text.to_vec();
        let writer = async move {
            tokio::io::AsyncWriteExt::write_all(&mut write, &text).await.unwrap();
        };
        let reader = async {
            let mut lines = Lines::new(pipe, bytes_max);
            let mut read = Vec::new();
            while let Some(line) = lines.next().await.unwrap() {
                assert!(lines.buffer.len() <= bytes_max + READ_BYTES);
                read.push(match line {
                    Line::Whole(line) => Some(String::from_utf8_lossy(&line).into_owned()),
                    Line::TooLong => None,
                });
            }
            read
        };
        futures_util::future::join(writer, reader).await.1
    }

    #[actix_rt::test]
    async fn lines_are_the_same_however_the_pipe_cuts_them() {
        let text = b"{\"a\":1}\n\n  \r\n{\"b\":2}\r\n0123456789012345\n{\"c\":3}\nlast";
        let expected = ["{\"a\":1}", "{\"b\":2}", "", "{\"c\":3}", "last"]
            .map(|line| (!line.is_empty()).then(|| line.to_owned()));
        for piece in 1..64 {
            assert_eq!(read(text, 12, piece).await, expected, "pieces of {piece}");
        }
    }

    #[actix_rt::test]
    async fn a_line_without_end_is_told_once_and_not_kept() {
        let endless = vec![b'x'; 1 << 20];
        assert_eq!(read(&endless, 1_000, 64 << 10).await, [None]);
    }
}
