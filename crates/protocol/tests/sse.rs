//! Property tests of the SSE codec.

use bytes::BytesMut;
use proptest::prelude::*;
use protocol::sse::{self, Decoder, Event};

fn decode<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<Event> {
    let (mut decoder, mut events) = (Decoder::new(1 << 20), Vec::new());
    for part in parts {
        decoder.feed(part, &mut events).expect("the streams are short");
    }
    events
}

/// A frame that Roundhouse writes, and the event that it decodes to.
#[derive(Clone, Debug)]
enum Frame {
    Message { name: Option<String>, id: Option<String>, line: String },
    Cursor { id: String, retry: u32 },
    Retry(u32),
    Comment(String),
    Endpoint(String),
}

impl Frame {
    fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Message { name, id, line } => {
                sse::message(out, name.as_deref(), id.as_deref(), line.as_bytes());
            }
            Self::Cursor { id, retry } => sse::cursor(out, id, *retry),
            Self::Retry(retry) => sse::retry(out, *retry),
            Self::Comment(text) => sse::comment(out, text),
            Self::Endpoint(uri) => sse::endpoint(out, uri),
        }
    }

    fn read(self) -> Option<Event> {
        let retry_of = |retry| Some(u64::from(retry));
        Some(match self {
            Self::Message { name, id, line } => {
                Event { event: name, id, data: Some(line), retry: None }
            }
            Self::Cursor { id, retry } => Event {
                event: None,
                id: Some(id),
                data: Some(String::new()),
                retry: retry_of(retry),
            },
            Self::Retry(retry) => Event { retry: retry_of(retry), ..Event::default() },
            Self::Comment(_) => return None,
            Self::Endpoint(uri) => {
                Event { event: Some("endpoint".into()), data: Some(uri), ..Event::default() }
            }
        })
    }
}

fn frame() -> impl Strategy<Value = Frame> {
    let line = "[^\r\n]{0,40}";
    let id = "[!-~]{1,12}";
    let name = proptest::option::of("[a-z]{1,8}");
    prop_oneof![
        (name, proptest::option::of(id), line).prop_map(|(name, id, line)| Frame::Message {
            name,
            id,
            line
        }),
        (id, any::<u32>()).prop_map(|(id, retry)| Frame::Cursor { id, retry }),
        any::<u32>().prop_map(Frame::Retry),
        line.prop_map(Frame::Comment),
        "/[!-~]{0,20}".prop_map(Frame::Endpoint),
    ]
}

/// Streams of other programs: parts of the syntax and random bytes.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let bit = prop_oneof![
        Just(b"\n".to_vec()),
        Just(b"\r".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\xEF\xBB\xBF".to_vec()),
        Just(b"data: {\"a\":1}".to_vec()),
        Just(b"data".to_vec()),
        Just(b"id: 7".to_vec()),
        Just(b"retry: 10".to_vec()),
        Just(b"event: message".to_vec()),
        Just(b": ping".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..6),
    ];
    proptest::collection::vec(bit, 0..24).prop_map(|bits| bits.concat())
}

proptest! {
    #[test]
    fn written_frames_decode_to_the_same_events(frames in proptest::collection::vec(frame(), 0..12)) {
        let mut out = BytesMut::new();
        for frame in &frames {
            frame.write(&mut out);
        }
        let expected: Vec<_> = frames.into_iter().filter_map(Frame::read).collect();
        prop_assert_eq!(decode([&out[..]]), expected);
    }

    // holds: SSE-12
    #[test]
    fn a_stream_decodes_the_same_wherever_it_is_split(stream in stream()) {
        let whole = decode([&stream[..]]);
        for cut in 0..=stream.len() {
            let (before, after) = stream.split_at(cut);
            prop_assert_eq!(&decode([before, after]), &whole, "cut at {}", cut);
        }
        prop_assert_eq!(decode(stream.chunks(1)), whole);
    }

    #[test]
    fn no_event_is_longer_than_the_bound(stream in stream(), bytes_max in 0_usize..40) {
        let (mut decoder, mut events) = (Decoder::new(bytes_max), Vec::new());
        let _ = decoder.feed(&stream, &mut events);
        for event in events {
            // A byte that is not UTF-8 is one byte of the stream and three of the text.
            let long = event.data.unwrap_or_default().chars().count();
            prop_assert!(long <= bytes_max);
        }
    }
}
