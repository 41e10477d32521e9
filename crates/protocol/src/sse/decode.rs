//! Decodes server-sent events by the rules of WHATWG's HTML.

/// One block of a stream with at least one field: an event with data, or a block with only an id
/// or a retry, for which browsers dispatch no event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// `event`, if the block has it; otherwise the event is a `message`.
    pub event: Option<String>,
    /// `id`, if this block has one. [`Decoder::last_event_id`] returns the latest.
    pub id: Option<String>,
    /// `data`, with its lines joined. `None` if clients dispatch no event for the block.
    pub data: Option<String>,
    /// `retry`: how long to wait before reconnecting, in milliseconds.
    pub retry: Option<u64>,
}

/// An event was longer than the bound. The rest of the stream cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than {bytes_max} bytes; close the stream")]
pub struct TooLong {
    /// The bound.
    pub bytes_max: usize,
}

/// Decodes a stream in pieces of any length.
#[derive(Debug)]
pub struct Decoder {
    event_bytes_max: usize,
    /// The unfinished line.
    line: Vec<u8>,
    /// The unfinished event.
    event: Event,
    /// The length of the unfinished event so far, in bytes.
    held: usize,
    after_cr: bool,
    is_first_line: bool,
    last_event_id: Option<String>,
    comments: u64,
    broken: bool,
}

impl Decoder {
    /// Creates a decoder for a new stream. It fails with [`TooLong`] if a line, or the fields of an
    /// event together, are longer than `event_bytes_max`.
    pub fn new(event_bytes_max: usize) -> Self {
        Self {
            event_bytes_max,
            line: Vec::new(),
            event: Event::default(),
            held: 0,
            after_cr: false,
            is_first_line: true,
            last_event_id: None,
            comments: 0,
            broken: false,
        }
    }

    /// Decodes the next piece and appends the completed events. After an error, the events before
    /// it have been appended, and every later call fails too. An event that is incomplete at the
    /// end of the stream is discarded.
    pub fn feed(&mut self, mut bytes: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        let too_long = TooLong { bytes_max: self.event_bytes_max };
        if self.broken {
            return Err(too_long);
        }
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_cr) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = memchr::memchr2(b'\n', b'\r', bytes);
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.held + self.line.len() + part.len() > self.event_bytes_max {
                self.broken = true;
                return Err(too_long);
            }
            let Some(end) = end else {
                self.line.extend_from_slice(part);
                return Ok(());
            };
            self.after_cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if self.line.is_empty() {
                self.take_line(part, events);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(part);
                self.take_line(&line, events);
                line.clear();
                self.line = line;
            }
        }
        Ok(())
    }

    /// The id to resume from: the last one of the stream. `None` also after an empty id, which
    /// resets it.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref().filter(|id| !id.is_empty())
    }

    /// The bytes of the unfinished event and its unfinished line.
    pub fn held_bytes(&self) -> usize {
        self.held + self.line.len()
    }

    /// The number of comments so far.
    pub fn comments(&self) -> u64 {
        self.comments
    }

    fn take_line(&mut self, mut line: &[u8], events: &mut Vec<Event>) {
        if std::mem::take(&mut self.is_first_line) {
            line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        }
        if line.is_empty() {
            self.dispatch(events);
            return;
        }
        let (field, value) = match memchr::memchr(b':', line) {
            Some(0) => {
                self.comments += 1;
                return;
            }
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        self.take_field(field, value.strip_prefix(b" ").unwrap_or(value));
    }

    fn take_field(&mut self, field: &[u8], value: &[u8]) {
        let text = || String::from_utf8_lossy(value);
        match field {
            b"data" => match &mut self.event.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(&text());
                }
                None => self.event.data = Some(text().into_owned()),
            },
            b"event" => {
                self.event.event = Some(text().into_owned()).filter(|name| !name.is_empty())
            }
            b"id" if !value.contains(&0) => self.event.id = Some(text().into_owned()),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                self.event.retry = text().parse().ok().or(self.event.retry);
            }
            _ => return,
        }
        // Includes the overhead of the line, so that empty data lines are bounded too.
        self.held += field.len() + value.len() + 1;
    }

    fn dispatch(&mut self, events: &mut Vec<Event>) {
        self.held = 0;
        let event = std::mem::take(&mut self.event);
        if event.id.is_some() {
            self.last_event_id.clone_from(&event.id);
        }
        if event.data.is_some() || event.id.is_some() || event.retry.is_some() {
            events.push(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(text: &[u8]) -> (Decoder, Vec<Event>) {
        let (mut decoder, mut events) = (Decoder::new(1000), Vec::new());
        decoder.feed(text, &mut events).expect("the test's events are short");
        (decoder, events)
    }

    /// The data of the events; `-` for a block without data.
    fn check(text: &str, expected: &[&str]) {
        let (_, events) = decode(text.as_bytes());
        let told: Vec<_> =
            events.iter().map(|event| event.data.as_deref().unwrap_or("-")).collect();
        assert_eq!(told, expected, "{text:?}");
    }

    // holds: SSE-12
    #[test]
    fn lines_end_with_lf_crlf_or_cr() {
        check("data: a\n\ndata: b\n\n", &["a", "b"]);
        check("data: a\r\n\r\ndata: b\r\n\r\n", &["a", "b"]);
        check("data: a\r\rdata: b\r\r", &["a", "b"]);
        check("data: a\r\n\ndata: b\n\r\n", &["a", "b"]);
        // A CRLF ends one line and not two, also if it is split between pieces.
        let (mut decoder, mut events) = (Decoder::new(100), Vec::new());
        for part in ["id: 1\r", "\ndata: a\r", "\n", "data: b\r\n\r", "\n"] {
            decoder.feed(part.as_bytes(), &mut events).expect("the events are short");
        }
        let whole = Event { id: Some("1".into()), data: Some("a\nb".into()), ..Event::default() };
        assert_eq!(events, [whole]);
    }

    #[test]
    fn one_space_after_the_colon_is_not_part_of_the_value() {
        check("data:a\n\ndata:  a\n\ndata\n\ndata:\n\n", &["a", " a", "", ""]);
    }

    #[test]
    fn data_lines_are_joined() {
        check("data: a\ndata\ndata: b\n\n", &["a\n\nb"]);
    }

    // holds: SSE-12
    #[test]
    fn comments_and_unknown_fields_say_nothing() {
        let (decoder, events) = decode(b": ping\n\n:\nfoo: bar\nDATA: x\n data: x\ndata: a\n\n");
        assert_eq!((events.len(), decoder.comments()), (1, 2));
        assert_eq!(events[0].data.as_deref(), Some("a"));
    }

    // holds: SSE-12
    #[test]
    fn a_byte_order_mark_is_skipped_at_the_start_only() {
        check("\u{feff}data: a\n\n\u{feff}data: b\n\n", &["a"]);
    }

    #[test]
    fn ids_stay_until_the_next_and_one_with_a_nul_is_ignored() {
        let (decoder, events) = decode(b"id: 1\ndata: a\n\ndata: b\n\nid: 2\0\ndata: c\n\n");
        assert_eq!(decoder.last_event_id(), Some("1"));
        let ids: Vec<_> = events.iter().map(|event| event.id.as_deref()).collect();
        assert_eq!(ids, [Some("1"), None, None]);
        assert_eq!(decode(b"id: 1\n\n").0.last_event_id(), Some("1"));
        assert_eq!(decode(b"id: 1\n\nid\n\n").0.last_event_id(), None);
        assert_eq!(decode(b"id: 1\ndata: never finished\n").0.last_event_id(), None);
    }

    #[test]
    fn a_retry_is_digits_or_nothing() {
        let (_, events) = decode(
            b"retry: 500\n\nretry: 5s\n\nretry:\n\nretry: -1\n\nretry: 99999999999999999999\n\n",
        );
        assert_eq!(events, [Event { retry: Some(500), ..Event::default() }]);
    }

    #[test]
    fn an_event_has_its_name() {
        let (_, events) =
            decode(b"event: endpoint\ndata: /m\n\nevent:\ndata: x\n\nevent: lost\n\ndata: y\n\n");
        let names: Vec<_> = events.iter().map(|event| event.event.as_deref()).collect();
        assert_eq!(names, [Some("endpoint"), None, None]);
    }

    #[test]
    fn bytes_that_are_not_utf8_become_replacement_characters() {
        let (_, events) = decode(b"data: a\xFFb\n\n");
        assert_eq!(events[0].data.as_deref(), Some("a\u{fffd}b"));
    }

    #[test]
    fn an_event_longer_than_the_bound_ends_the_reading() {
        let too_long = Err(TooLong { bytes_max: 20 });
        let check = |parts: &[&str]| {
            let (mut decoder, mut events) = (Decoder::new(20), Vec::new());
            assert_eq!(decoder.feed(b"data: before\n\n", &mut events), Ok(()));
            let (last, first) = parts.split_last().expect("a test has parts");
            for part in first {
                assert_eq!(decoder.feed(part.as_bytes(), &mut events), Ok(()), "{parts:?}");
            }
            assert_eq!(decoder.feed(last.as_bytes(), &mut events), too_long, "{parts:?}");
            assert_eq!(decoder.feed(b"\n\n", &mut events), too_long, "broken for good");
            assert_eq!(events.len(), 1);
        };
        check(&["data: a line of too many bytes"]);
        check(&["data: it comes", " in ", "parts"]);
        check(&[": a comment of many words"]);
        check(&["data: 1\ndata: 2\n", "data: 345\n"]);
        check(&["data\ndata\ndata\ndata\n", "data\n"]);
        check(&["event: 12345\n", "id: 123456\n"]);
    }

    #[test]
    fn short_events_without_end_are_never_too_long() {
        let (mut decoder, mut events) = (Decoder::new(20), Vec::new());
        for _ in 0..1000 {
            decoder.feed(b"data: 1\n\n: ping\n:\n", &mut events).expect("each is short");
        }
        assert_eq!(events.len(), 1000);
    }
}
