//! Finds the end of a request's head in the bytes of a connection.
//!
//! A head ends at its first empty line, as it does for the parser. This file reads two headers of a request, and
//! notices what the parser accepts, and another parser in front of the node may read in
//! another way: lines that end without a carriage return, and a fragment in the request line.

const LENGTH: &[u8] = b"content-length:";
const ENCODING: &[u8] = b"transfer-encoding:";

/// What follows a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    /// A body of so many bytes, or none.
    Bytes(u64),
    /// A chunked body.
    Chunks,
    /// The headers cannot be understood: the parser refuses them, or their line is too long.
    Unknown,
}

/// How many bytes are kept of a line that has not arrived whole. A header that announces a body is shorter, or it
/// is not understood.
const KEPT: usize = 48;

/// The first empty line that is not the first line of a head ends it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadEnd {
    /// A line that is not empty was read.
    begun: bool,
    /// Bytes of the line that is not finished yet, without a carriage return at its end.
    line_bytes: usize,
    /// The first bytes of that line.
    kept: ([u8; KEPT], usize),
    /// The last byte was a carriage return.
    returned: bool,
    ambiguous: bool,
    announced: Option<Announced>,
}

impl Default for HeadEnd {
    fn default() -> Self {
        let kept = ([0; KEPT], 0);
        Self {
            begun: false,
            line_bytes: 0,
            kept,
            returned: false,
            ambiguous: false,
            announced: None,
        }
    }
}

impl HeadEnd {
    /// Reads on; returns how many bytes follow the head, once it is complete.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', bytes) {
            let line = &bytes[start..end];
            self.look_at(line);
            self.ambiguous |= !self.returned;
            let is_empty = self.line_bytes == 0;
            if self.begun && !is_empty {
                self.end_header(line);
            }
            self.kept.1 = 0;
            (start, self.line_bytes, self.returned) = (end + 1, 0, false);
            if is_empty && self.begun {
                return Some(bytes.len() - start);
            }
            self.begun |= !is_empty;
        }
        self.look_at(&bytes[start..]);
        self.keep(&bytes[start..]);
        None
    }

    /// Could another parser read the head in another way?
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.ambiguous
    }

    /// What follows the head, as its headers announce it.
    pub(crate) fn announced(&self) -> Announced {
        self.announced.unwrap_or(Announced::Bytes(0))
    }

    /// Looks at a header, of which the last part has arrived.
    fn end_header(&mut self, last: &[u8]) {
        if self.kept.1 == 0 {
            self.look_for_length(last);
            return;
        }
        self.keep(last);
        let (kept, length) = self.kept;
        self.look_for_length(&kept[..length]);
    }

    /// Keeps the begin of a line. What is longer than a length is not one that can be understood.
    fn keep(&mut self, part: &[u8]) {
        let (kept, length) = &mut self.kept;
        let part = &part[..part.len().min(KEPT - *length)];
        kept[*length..*length + part.len()].copy_from_slice(part);
        *length += part.len();
    }

    /// Looks at a header. A long one may be cut.
    fn look_for_length(&mut self, line: &[u8]) {
        let value_of = |name: &[u8]| {
            let (start, value) = line.split_at_checked(name.len())?;
            start.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
        };
        let length = |value: &[u8]| std::str::from_utf8(value).ok()?.parse().ok();
        // Few names begin with these letters.
        let announced = match line.first() {
            Some(b'c' | b'C') => value_of(LENGTH).map(|value| length(value).map(Announced::Bytes)),
            Some(b't' | b'T') => value_of(ENCODING)
                .map(|value| value.eq_ignore_ascii_case(b"chunked").then_some(Announced::Chunks)),
            _ => None,
        };
        if let Some(announced) = announced {
            let known = announced.filter(|_| self.announced.is_none() && line.len() < KEPT);
            self.announced = Some(known.unwrap_or(Announced::Unknown));
        }
    }

    /// Looks at a line, or at a part of it.
    fn look_at(&mut self, line: &[u8]) {
        if let Some((last, others)) = line.split_last() {
            // A carriage return that is not the last byte is one as any other.
            let before = usize::from(self.returned);
            self.returned = *last == b'\r';
            self.line_bytes += before + others.len() + usize::from(!self.returned);
        }
        self.ambiguous |= !self.begun && memchr::memchr(b'#', line).is_some();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&str]) -> (HeadEnd, Option<usize>) {
        let mut end = HeadEnd::default();
        let (last, before) = pieces.split_last().unwrap();
        for piece in before {
            assert_eq!(end.read(piece.as_bytes()), None, "{pieces:?}");
        }
        let behind = end.read(last.as_bytes());
        (end, behind)
    }

    /// Checks how many bytes of the last piece follow the end of the head.
    #[track_caller]
    fn check(pieces: &[&str], behind: Option<usize>) {
        assert_eq!(read(pieces).1, behind, "{pieces:?}");
    }

    #[test]
    fn a_head_ends_at_its_first_empty_line_however_it_arrives() {
        check(&["GET / HTTP/1.1\r\nHost: a\r\n\r\n"], Some(0));
        check(&["GET / HTTP/1.1\r\nHost: a\r\n\r\n{}"], Some(2));
        check(&["GET / HTTP/1.1\nHost: a\n\n{}"], Some(2));
        check(&["GET / HTTP/1.1\r\nHost: a\r", "\n", "\r", "\nab"], Some(2));
        check(&["GET / HTTP/1.1\r\nHost: a", "\r\n\r\n"], Some(0));
        check(&["G", "ET / HTTP/1.1\r\nHost: a\r\n"], None);
    }

    #[test]
    fn empty_lines_before_a_head_do_not_end_it() {
        check(&["\r\n\r\n\n\r\n"], None);
        check(&["\r\n\r\n", "GET / HTTP/1.1\r\n\r\nabc"], Some(3));
    }

    #[test]
    fn the_length_of_a_body_is_found_however_it_arrives() {
        let long = format!("content-length:{}7", " ".repeat(KEPT));
        let long_name = format!("{}: content-length: 3", "x".repeat(KEPT));
        for (headers, body) in [
            ("host: a", Announced::Bytes(0)),
            ("Content-Length: 12", Announced::Bytes(12)),
            ("content-LENGTH:12 \nx: y", Announced::Bytes(12)),
            ("content-length: 18446744073709551615", Announced::Bytes(u64::MAX)),
            ("content-lengths: 12\r\nx-content-length: 12", Announced::Bytes(0)),
            (&long_name, Announced::Bytes(0)),
            (&long, Announced::Unknown),
            ("content-length: x", Announced::Unknown),
            ("content-length: 1\r\ncontent-length: 2", Announced::Unknown),
            ("content-length: 1\r\nTransfer-Encoding: chunked", Announced::Unknown),
            ("Transfer-Encoding:  CHUNKED ", Announced::Chunks),
            ("transfer-encoding: gzip, chunked", Announced::Unknown),
            ("transfer-encoding: chunked\r\ntransfer-encoding: chunked", Announced::Unknown),
            ("transfer-encoding: chunked\r\ncontent-length: 1", Announced::Unknown),
        ] {
            let head = format!("POST /content-length:9 HTTP/1.1\r\n{headers}\r\n\r\n");
            assert_eq!(read(&[&head]).0.announced(), body, "{head:?}");
            for cut in 1..head.len() {
                let two = read(&[&head[..cut], &head[cut..]]).0.announced();
                assert_eq!(two, body, "{head:?} {cut}");
            }
            let each: Vec<_> = (0..head.len()).map(|at| &head[at..=at]).collect();
            assert_eq!(read(&each).0.announced(), body, "{head:?}");
        }
    }

    #[test]
    fn a_line_without_a_return_or_a_fragment_is_ambiguous_however_it_arrives() {
        for (head, ambiguous) in [
            ("GET / HTTP/1.1\r\nHost: a#b\r\n\r\n", false),
            ("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", false),
            ("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", true),
            ("GET / HTTP/1.1\nHost: a\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nHost: a\n\r\n", true),
            ("GET / HTTP/1.1\r\nHost: a\r\n\n", true),
            ("GET /#x HTTP/1.1\r\nHost: a\r\n\r\n", true),
        ] {
            for cut in 1..head.len() {
                let (end, behind) = read(&[&head[..cut], &head[cut..]]);
                assert_eq!((end.is_ambiguous(), behind), (ambiguous, Some(0)), "{head:?} {cut}");
            }
        }
        assert!(!read(&["GET / HTTP/1.1\r\n\r\n\n#"]).0.is_ambiguous(), "the body is not read");
    }

    /// Where a head ends that arrives in pieces of such lengths, in turn, and what was found.
    fn found(bytes: &[u8], lengths: &[usize]) -> (Option<usize>, bool, Announced) {
        let (mut end, mut at) = (HeadEnd::default(), 0);
        for length in lengths.iter().cycle() {
            let to = (at + length).min(bytes.len());
            let behind = end.read(&bytes[at..to]);
            if behind.is_some() || to == bytes.len() {
                return (behind.map(|behind| to - behind), end.is_ambiguous(), end.announced());
            }
            at = to;
        }
        unreachable!("there is a length")
    }

    proptest! {
        #[test]
        fn what_is_found_does_not_depend_on_the_pieces_in_which_a_head_arrives(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "POST / HTTP/1.1\r\n", "content-length: 5\r\n", "Content-Length:", " 7", "#", "x: y", "c",
                    "transfer-encoding: chunked\r\n", "\r", "\n", "\r\n", "\r\n\r\n", "                     ",
                ]),
                1..20,
            ),
            lengths in prop::collection::vec(1_usize..20, 1..8),
        ) {
            let bytes = parts.concat().into_bytes();
            prop_assert_eq!(found(&bytes, &lengths), found(&bytes, &[bytes.len()]));
        }
    }
}
