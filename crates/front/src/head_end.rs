//! Finds the end of a request's head in the bytes of a connection.
//!
//! A head ends at its first empty line, as it does for the parser. This file parses no request.
//! It notices what the parser accepts, and another parser in front of the node may read in
//! another way: lines that end without a carriage return, and a fragment in the request line.

/// The first empty line that is not the first line of a head ends it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeadEnd {
    /// A line that is not empty was read.
    begun: bool,
    /// Bytes of the line that is not finished yet, without a carriage return at its end.
    line_bytes: usize,
    /// The last byte was a carriage return.
    returned: bool,
    ambiguous: bool,
}

impl HeadEnd {
    /// Reads on; returns how many bytes follow the head, once it is complete.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', bytes) {
            let line = &bytes[start..end];
            self.look_at(line);
            self.ambiguous |= !self.returned;
            let is_empty = self.line_bytes + without_return(line) == 0;
            (start, self.line_bytes, self.returned) = (end + 1, 0, false);
            if is_empty && self.begun {
                return Some(bytes.len() - start);
            }
            self.begun |= !is_empty;
        }
        self.look_at(&bytes[start..]);
        self.line_bytes += without_return(&bytes[start..]);
        None
    }

    /// Has any byte of the head arrived?
    pub(crate) fn has_begun(&self) -> bool {
        self.begun || self.line_bytes > 0 || self.returned
    }

    /// Could another parser read the head in another way?
    pub(crate) fn is_ambiguous(&self) -> bool {
        self.ambiguous
    }

    /// Looks at a line, or at a part of it.
    fn look_at(&mut self, line: &[u8]) {
        if let Some(last) = line.last() {
            self.returned = *last == b'\r';
        }
        self.ambiguous |= !self.begun && memchr::memchr(b'#', line).is_some();
    }
}

fn without_return(line: &[u8]) -> usize {
    line.len() - usize::from(line.last() == Some(&b'\r'))
}

#[cfg(test)]
mod tests {
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
            assert!(read(&[head]).0.has_begun() && !HeadEnd::default().has_begun());
        }
        assert!(!read(&["GET / HTTP/1.1\r\n\r\n\n#"]).0.is_ambiguous(), "the body is not read");
    }
}
