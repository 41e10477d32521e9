//! Finds where each request of a connection ends.
//!
//! It reads the same bytes as the HTTP layer, before it, and copies nothing. Where it cannot tell, the request is
//! refused and the connection is closed.

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
    use actix_http::h1::{Codec, Message, MessageType};
    use bytes::BytesMut;
    use proptest::prelude::*;
    use tokio_util::codec::Decoder as _;

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

    /// Where the requests end that the HTTP layer takes, up to the first one that it refuses or that is not whole.
    fn ends_of_parser(bytes: &[u8]) -> Vec<usize> {
        let (mut codec, mut left, mut ends) = (Codec::default(), BytesMut::from(bytes), Vec::new());
        loop {
            let message = match codec.decode(&mut left) {
                Ok(Some(message)) => message,
                Ok(None) | Err(_) => return ends,
            };
            let is_whole = match message {
                Message::Item(_) => matches!(codec.message_type(), MessageType::None),
                Message::Chunk(chunk) => chunk.is_none(),
            };
            if is_whole {
                ends.push(bytes.len() - left.len());
            }
        }
    }

    /// The same as it is found here, in pieces of such lengths, in turn.
    fn ends(bytes: &[u8], lengths: &[usize]) -> Vec<usize> {
        let (mut framing, mut ends, mut at) = (Framing::default(), Vec::new(), 0);
        let mut lengths = lengths.iter().cycle();
        while at < bytes.len() {
            let to = (at + lengths.next().unwrap()).min(bytes.len());
            while at < to {
                at += framing.read(&bytes[at..to]);
                if framing.due() == Due::Nothing {
                    framing.begin_next();
                    ends.push(at);
                }
            }
        }
        ends
    }

    fn request() -> impl Strategy<Value = String> {
        let line = prop::sample::select(vec![
            "GET / HTTP/1.1",
            "POST /a HTTP/1.1",
            "POST / HTTP/1.0",
            "\r\nPUT / HTTP/1.1",
        ]);
        let header = prop::sample::select(vec![
            "Content-Length: 3",
            "content-length:0",
            "Content-Length: 12 ",
            "content-length: +3",
            "content-length: x",
            "Transfer-Encoding: chunked",
            "transfer-encoding:  CHUNKED",
            "Transfer-Encoding: identity",
            "Connection: close",
            "X: content-length: 4",
            "Expect: 100-continue",
            "Content-Length : 3",
            " folded",
            "Y:",
        ]);
        let end = prop::sample::select(vec!["\r\n", "\r\n", "\r\n", "\n"]);
        let body = prop::sample::select(vec![
            "",
            "",
            "abc",
            "abcdefghijkl",
            "3\r\nabc\r\n0\r\n\r\n",
            "0\r\n\r\n",
            "a;x=y\r\n0123456789\r\n00\r\nT: u\r\n\r\n",
            "3\r\nabcd\r\n",
            "g\r\n",
            "\r\n",
        ]);
        (line, prop::collection::vec(header, 0..3), end, body).prop_map(
            |(line, headers, end, body)| {
                let headers: String =
                    headers.iter().map(|header| format!("{header}{end}")).collect();
                format!("{line}{end}Host: a{end}{headers}{end}{body}")
            },
        )
    }

    proptest! {
        /// What the HTTP layer refuses closes the connection, so it does not matter where that ends.
        #[test]
        fn requests_end_where_they_do_for_the_parser(
            requests in prop::collection::vec(request(), 1..4),
            lengths in prop::collection::vec(1_usize..60, 1..6),
        ) {
            let bytes = requests.concat().into_bytes();
            let of_parser =
                actix_rt::System::new().block_on(async { ends_of_parser(&bytes) });
            let found = ends(&bytes, &lengths);
            prop_assert!(found.starts_with(&of_parser), "{found:?}, and {of_parser:?}");
        }
    }
}
