//! Finds where each request of a connection ends.
//!
//! It reads the same bytes as the HTTP layer, before it, and copies nothing. Where it cannot tell, the HTTP
//! layer refuses the request and closes the connection.

use crate::chunks::Chunks;
use crate::head_end::{Announced, HeadEnd};

/// The request of a connection that arrives now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Framing {
    head: HeadEnd,
    due: Due,
    has_body: bool,
}

/// What of a request is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Due {
    /// A head, or its rest.
    #[default]
    Head,
    /// So many bytes of a body, at least one.
    Bytes(u64),
    /// Chunks.
    Chunks(Chunks),
    /// Nothing: it has arrived.
    Nothing,
    /// It is not known where it ends.
    Unknown,
}

impl Framing {
    /// Reads on, up to the end of the request. Returns how many bytes belong to it.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            match &mut self.due {
                Due::Head => {
                    let behind = self.head.read(rest);
                    at = bytes.len() - behind.unwrap_or(0);
                    if behind.is_some() {
                        self.due = Due::of_body(self.head.announced());
                    }
                    continue;
                }
                Due::Bytes(left) => {
                    let there = (*left).min(rest.len() as u64);
                    at += there as usize;
                    *left -= there;
                    if *left == 0 {
                        self.due = Due::Nothing;
                    }
                }
                Due::Chunks(chunks) => {
                    at += chunks.read(rest);
                    match chunks {
                        Chunks::Over => self.due = Due::Nothing,
                        Chunks::Broken => self.due = Due::Unknown,
                        _ => {}
                    }
                }
                Due::Nothing => break,
                Due::Unknown => at = bytes.len(),
            }
            self.has_body = true;
        }
        at
    }

    /// What is due.
    pub(crate) fn due(&self) -> Due {
        self.due
    }

    /// Whether a part of the body has arrived.
    pub(crate) fn has_body(&self) -> bool {
        self.has_body
    }

    /// Has any byte of the head arrived?
    pub(crate) fn has_begun(&self) -> bool {
        self.head.has_begun()
    }

    /// Could another parser read the head in another way? Also if it is not known where it begins.
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.head.is_ambiguous() || self.due == Due::Unknown
    }

    /// The next request is due.
    pub(crate) fn begin_next(&mut self) {
        *self = Self::default();
    }

    /// It is not known any more where requests end.
    pub(crate) fn lose(&mut self) {
        self.due = Due::Unknown;
    }
}

impl Due {
    fn of_body(announced: Announced) -> Self {
        match announced {
            Announced::Bytes(0) => Self::Nothing,
            Announced::Bytes(bytes) => Self::Bytes(bytes),
            Announced::Chunks => Self::Chunks(Chunks::FirstDigit),
            Announced::Unknown => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_ends_where_its_body_does_however_it_arrives() {
        let requests = [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n\r\n\r",
            "\r\nPOST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        ];
        let all = requests.concat();
        for length in 1..=all.len() {
            let (mut framing, mut ends, mut end) = (Framing::default(), Vec::new(), 0);
            for piece in all.as_bytes().chunks(length) {
                let mut at = 0;
                while at < piece.len() {
                    let used = framing.read(&piece[at..]);
                    (at, end) = (at + used, end + used);
                    if framing.due() == Due::Nothing {
                        framing.begin_next();
                        ends.push(std::mem::take(&mut end));
                    }
                }
            }
            assert_eq!(ends, requests.map(str::len), "{length}");
        }
    }

    #[test]
    fn a_request_whose_end_is_unknown_is_ambiguous() {
        let mut framing = Framing::default();
        let head = b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\nPOST";
        assert_eq!(framing.read(head), head.len());
        assert!(framing.due() == Due::Unknown && framing.is_ambiguous());
        let mut framing = Framing::default();
        let head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nno";
        assert_eq!(framing.read(head), head.len());
        assert!(framing.due() == Due::Unknown && framing.has_body());
    }
}
